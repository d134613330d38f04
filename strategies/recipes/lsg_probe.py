"""LSG on probe carriers: dL and dR in the directions of public gradients, sparse by the energy that
they predict.

Differs from Ito et al. 2023 in where carriers and importance come from; the rest is ``lsg``.
"""

from fedlsg.carriers import Rank
from fedlsg.carriers.probe import CarrierRefresh, Probe, ProbeInputs, Probes
from fedlsg.masks import Direction, Mask, Sparsity, SparsityFrom
from fedlsg.masks.mask import Importance
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    rank: Rank = 4,
    refresh_rounds: CarrierRefresh = 20,
    source: ProbeInputs = "auto",
    probes: Probes = 1000,
    sparsity: Sparsity = 0.3,
    direction: Direction = "top",
    importance: Importance = "energy",
    sparsity_from: SparsityFrom = 0.0,
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """Carriers of public probes, and a mask of units by predicted energy; ``sparsity=0`` is
    ``rgp-probe``.
    """
    return Method(
        name="lsg-probe",
        carrier=Probe(rank=rank, refresh=refresh_rounds, source=source, probes=probes),
        mask=Mask(
            kind="units",
            sparsity=sparsity,
            direction=direction,
            importance=importance,
            sparsity_from=sparsity_from,
        ),
        mechanism=mechanism,
        server=server,
    )
