"""DP-TL: the classifier of a pretrained network is trained privately, the rest is frozen (Tramer
and Boneh 2021).

With ``sparsity`` it has the random masks of ``rs``, as in Fig. 4 of Zhu and Blaschko 2023.
Differs from the source: the frozen network runs in every step. ``features=MODEL`` computes its
outputs once and caches them; any method then trains the head (docs/features.md).
"""

from fedlsg.carriers import Dense
from fedlsg.masks import Mask, Sparsity
from fedlsg.masks.mask import Cooling
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    sparsity: Sparsity = 0.0,
    cooling: Cooling = True,
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """The classifier, dense, under a random mask; ``sparsity=0`` keeps everything.

    Under ``cooling`` the mask's rate rises to ``sparsity``.
    """
    mask = Mask(kind="uniform", sparsity=sparsity, cooling=cooling) if sparsity else Mask()
    return Method(
        name="dp-tl",
        carrier=Dense(train="classifier"),
        mask=mask,
        mechanism=mechanism,
        server=server,
    )
