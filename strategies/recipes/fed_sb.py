"""Fed-SB: a core C (r, r) between two frozen factors is trained, W_0 + s B C A (Singhal et al.
2025).

The effective weight is linear in C: the average of the clients' products is the product of their
average, after any number of local steps, and r^2 values of a layer are sent whatever its size.
Differs from the source: A and B are carriers of the public W_0, found by the power method, and C
starts at 0. There they, and C, come from the singular vectors of a first full update on training
data, a release that an epsilon would have to pay for. The classifier is trained, dense (heads here
start at random).
``probe`` sends such a core, too: between directions of public gradients, which are found again
every few rounds.
"""

from fedlsg.carriers import Lora, LoraAlpha, Rank
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer

POWER_STEPS = 4
"""Of the power method, once before the run: B and A are close to the top singular vectors of
W_0.
"""


def recipe(
    *, rank: Rank = 16, lora_alpha: LoraAlpha = None, mechanism: Mechanism, server: ServerOptimizer
) -> Method:
    """The r x r core of an update of every weight that carriers of this rank would carry, and the
    classifier.

    ``lora_alpha``: the product is scaled by alpha / rank, by 1 where it is None; linear in C, it
    acts as a learning rate and a clip do.
    """
    carrier = Lora(rank=rank, alpha=lora_alpha, train="core", power_steps=POWER_STEPS)
    return Method(name="fed-sb", carrier=carrier, mechanism=mechanism, server=server)
