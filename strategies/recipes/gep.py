"""GEP: gradients embedded in public anchor gradients L, and their rests (Yu, Zhang, Chen and Liu
2021, Alg. 1). The rest of a gradient g is g - L L^T g.

Differs from the source: a group of parameters is one tensor, and every group has k = ``rank``
vectors; there the parameters are cut into groups of equal length. ``clip_norm`` is the norm of both
parts together, C: embeddings are clipped to C / sqrt(2), rests to ``residual_clip`` times that, and
both releases of a batch are accounted as the one Gaussian release that they are
(``gradients.formulas.embedded_gradients``).
"""

from typing import Annotated

from fedlsg.carriers import Rank
from fedlsg.carriers.probe import CarrierRefresh, Probe, ProbeInputs, Probes, ResidualClip
from fedlsg.config import Setting
from fedlsg.masks import Mask, Sparsity
from fedlsg.masks.mask import Cooling
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer

Biased = Annotated[bool, Setting("Send embeddings alone, without the rests (B-GEP).")]


def recipe(
    *,
    rank: Rank = 16,
    biased: Biased = False,
    residual_clip: ResidualClip = 0.4,
    refresh_rounds: CarrierRefresh = 1,
    source: ProbeInputs = "auto",
    probes: Probes = 200,
    sparsity: Sparsity = 0.0,
    cooling: Cooling = True,
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """Embeddings of every parameter's gradient in anchor gradients, and the rests, each clipped on
    its own.

    ``biased``: B-GEP, the embeddings alone: ``rank`` values a parameter are sent. ``sparsity``: the
    random masks of ``rs`` over what is sent, before the clip (Zhu and Blaschko 2023, Fig. 4, do
    not say which coordinates of GEP they freeze).
    """
    carrier = Probe(
        form="embedding-only" if biased else "embedding",
        rank=rank,
        residual_clip=residual_clip,
        refresh=refresh_rounds,
        source=source,
        probes=probes,
    )
    mask = Mask(kind="uniform", sparsity=sparsity, cooling=cooling) if sparsity else Mask()
    return Method(name="gep", carrier=carrier, mask=mask, mechanism=mechanism, server=server)
