"""FFA-LoRA: LoRA whose A stays at its public random value; B and the classifier are trained (Sun et
al. 2024).

The effective weight W_0 + s B A is linear in B: the average of the clients' products is the product
of their average, after any number of local steps. Of ``lora``, where both factors move, only the
factors are averaged.
Differs from the source: the classifier is trained, dense (heads here start at random); A is drawn
uniformly, as LoRA's is, from the public seed, so it is never sent; biases and norm scales are
frozen as there, unlike in ``lora``.
"""

from fedlsg.carriers import Lora, LoraAlpha, Rank
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *, rank: Rank = 8, lora_alpha: LoraAlpha = None, mechanism: Mechanism, server: ServerOptimizer
) -> Method:
    """B next to every weight that carriers of this rank would carry; half of what ``lora`` sends
    where W is square.

    ``lora_alpha``: the product is scaled by alpha / rank, by 1 where it is None; linear in B, it
    acts as a learning rate and a clip do.
    """
    carrier = Lora(rank=rank, alpha=lora_alpha, train="up")
    return Method(name="ffa-lora", carrier=carrier, mechanism=mechanism, server=server)
