"""RGP on probe carriers: Eq. 3 with the directions of public gradients in place of those of W -
W_0.
"""

from fedlsg.carriers import Rank
from fedlsg.carriers.probe import CarrierRefresh, Probe, ProbeInputs, Probes
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    rank: Rank = 4,
    refresh_rounds: CarrierRefresh = 20,
    source: ProbeInputs = "auto",
    probes: Probes = 1000,
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """Carriers of public probes, every row of dL and every column of dR; no mask."""
    return Method(
        name="rgp-probe",
        carrier=Probe(rank=rank, refresh=refresh_rounds, source=source, probes=probes),
        mechanism=mechanism,
        server=server,
    )
