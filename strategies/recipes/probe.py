"""Probe carriers in the form core: S = L^T dW R^T in the directions of public gradients (fedlsg's
own method).
"""

from fedlsg.carriers import OutRank, Rank
from fedlsg.carriers.probe import CarrierRefresh, Damping, Power, Probe, ProbeInputs, Probes
from fedlsg.masks import Mask, Sparsity
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    rank: Rank = 128,
    out_rank: OutRank | None = 64,
    refresh_rounds: CarrierRefresh = 20,
    source: ProbeInputs = "auto",
    probes: Probes = 1000,
    power: Power = 0.25,
    damping: Damping = 0.01,
    sparsity: Sparsity = 0.0,
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """The core S of each weight between carriers of public probes, scaled by the spectrum that they
    predict.

    ``sparsity``: the share of each S that is frozen, where the probe predicts the least energy.
    """
    carrier = Probe(
        form="core",
        rank=rank,
        out_rank=out_rank,
        refresh=refresh_rounds,
        source=source,
        probes=probes,
        power=power,
        damping=damping,
    )
    mask = Mask(kind="energy", sparsity=sparsity) if sparsity else Mask()
    return Method(name="probe", carrier=carrier, mask=mask, mechanism=mechanism, server=server)
