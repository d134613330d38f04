"""DP-KFC: full gradients, preconditioned by public probes before the clip (Molina Van den Bosch et
al. 2026).

    S = (B / mean + damping I)^-power dW (A / mean + damping I)^-power, clip, noise, W <- W - lr S

Neither clip nor noise is undone by the server: noise is isotropic in S. With ``power=0`` it is
``dpsgd``.
Differs from the paper: A and B are second moments of normalised per-example gradients, as for
``probe``, in place of those of activations and errors; damping is relative to the mean eigenvalue;
biases, norms and the classifier are not preconditioned; a round is a step.
"""

from fedlsg.carriers.probe import CarrierRefresh, Damping, Power, Probe, ProbeInputs, Probes
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    refresh_rounds: CarrierRefresh = 20,
    source: ProbeInputs = "auto",
    probes: Probes = 1000,
    power: Power = 0.5,
    damping: Damping = 0.01,
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """Every value of each weight, preconditioned on both sides: as many bytes as dense DP-SGD."""
    carrier = Probe(
        form="preconditioned",
        refresh=refresh_rounds,
        source=source,
        probes=probes,
        power=power,
        damping=damping,
    )
    return Method(name="dp-kfc", carrier=carrier, mechanism=mechanism, server=server)
