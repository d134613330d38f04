"""Carriers from probes: synthetic public inputs pass through the public weights, and their
gradients span the carriers.

    source   what is pushed through the model: inputs, their targets, the loss
    moments  per layer, A = sum g^T g and B = sum g g^T over the probes' normalised gradients g
    eigen    the top eigenvectors of A and B
    carrier  the carrier itself: its settings, and what it answers
    basis    L and R of every carried weight, with the energy that they predict, until the next
             refresh
    flat     a basis as one vector, for checkpoints and messages

No private example is read anywhere in this package, so a probe costs no privacy.
"""

from fedlsg.carriers.probe.basis import Basis, flatten, probe_basis, refresh_of, unflatten
from fedlsg.carriers.probe.carrier import (
    CannotDrawError,
    CarrierRefresh,
    Damping,
    Power,
    Probe,
    ProbeInputs,
    Probes,
    ProbeSource,
    ResidualClip,
)

__all__ = [
    "Basis",
    "CannotDrawError",
    "CarrierRefresh",
    "Damping",
    "Power",
    "Probe",
    "ProbeInputs",
    "ProbeSource",
    "Probes",
    "ResidualClip",
    "flatten",
    "probe_basis",
    "refresh_of",
    "unflatten",
]
