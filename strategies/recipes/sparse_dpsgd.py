"""Sparse DP-SGD: dense gradients without those of the smallest weights, as SNF does (a baseline of
Ito et al. 2023).

With ``convolutions_alone`` it is SNF-DP-SGD, on pretrained weights (Luo et al. 2021, as Ito et al.
2024, sec. 2.3, describe it).
Differs from the source: scales and biases stay dense, and the rate is per weight tensor, as in
``lsg``.
"""

from fedlsg.masks import Mask, Sparsity, SparsityFrom
from fedlsg.masks.mask import ConvolutionsAlone, Refresh
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    sparsity: Sparsity = 0.5,
    refresh: Refresh = False,
    convolutions_alone: ConvolutionsAlone = False,
    sparsity_from: SparsityFrom = 0.0,
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """The floor(p n) weights of smallest magnitude of each tensor are frozen: of W_0, or of W_t
    with ``refresh``.
    """
    return Method(
        name="sparse-dpsgd",
        mask=Mask(
            kind="magnitude",
            sparsity=sparsity,
            refresh=refresh,
            convolutions_alone=convolutions_alone,
            sparsity_from=sparsity_from,
        ),
        mechanism=mechanism,
        server=server,
    )
