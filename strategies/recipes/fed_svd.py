"""FedSVD: B is trained next to an A with orthonormal rows, on an orthonormal basis of B A (Lee et
al. 2025).

The source factors the server's B A = U S V^T after each round, and continues with A = V^T and B = U
S. The rows of B A lie in the span of those of A: where B has full rank, and noise gives it that,
the new A is Q A with an orthogonal Q (r, r), and the new B is B Q^T. Gradients of B turn with it,
and so does its Gaussian noise; norms and clip stay. Under the server's SGD, W_0 + s B A is
distributed as it is without the factorisation (a test compares the two). So A stays where it is
here: an orthonormal draw from the public seed, which is never sent.
Differs from the source: Adam scales single entries of B, and would scale others after each
factorisation. It is left out there, too. The classifier is trained, dense.
"""

from fedlsg.carriers import Lora, LoraAlpha, Rank
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *, rank: Rank = 8, lora_alpha: LoraAlpha = None, mechanism: Mechanism, server: ServerOptimizer
) -> Method:
    """B next to every weight that carriers of this rank would carry, as ``ffa-lora``, with an
    orthonormal A.

    ``lora_alpha``: the product is scaled by alpha / rank, by 1 where it is None.
    """
    carrier = Lora(rank=rank, alpha=lora_alpha, train="up", orthonormal=True)
    return Method(name="fed-svd", carrier=carrier, mechanism=mechanism, server=server)
