"""Fed-SB: train a core C (r, r) between two frozen factors, W_0 + s B C A (Singhal et al. 2025).

The effective weight is linear in C. So the average of the clients' cores gives the average of their
weights, after any number of local steps. A layer sends r^2 values, whatever its size.
Differs from the source: A and B are carriers of the public W_0, found by the power method, and C
starts at 0. In the source all three come from the singular vectors of a first full update on
training data: a release that would cost epsilon. The classifier is trained as well, because heads
start at random here.
The recipe ``probe`` sends such a core, too: between directions of public gradients, which are
computed again every few rounds.
"""

from fedlsg.carriers import Lora, LoraAlpha, Rank
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer

POWER_STEPS = 4
"""Steps of the power method, once before the run: B and A then are close to the top singular
vectors of W_0.
"""


def recipe(
    *, rank: Rank = 16, lora_alpha: LoraAlpha = None, mechanism: Mechanism, server: ServerOptimizer
) -> Method:
    """A core for every weight that low-rank carriers of this rank would have, and the classifier.

    ``lora_alpha``: the product is scaled by s = alpha / rank; None: by 1. As W is linear in C, a
    larger s acts as a larger learning rate together with a smaller clip norm.
    """
    carrier = Lora(rank=rank, alpha=lora_alpha, train="core", power_steps=POWER_STEPS)
    return Method(name="fed-sb", carrier=carrier, mechanism=mechanism, server=server)
