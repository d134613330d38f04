"""Carriers from probes: gradients of synthetic public inputs at the public weights span them.

    synthetic        public inputs: images that a seed makes
    synthetic_texts  the same for texts
    carrier          the carrier with its settings, and the probe's inputs, targets and loss
    moments          of each layer, A = sum g^T g and B = sum g g^T over the probes' normalised
                     gradients g
    eigen            the top eigenvectors of A and B
    anchors          for embeddings: a basis of the gradients themselves
    basis            L and R of every carried weight, with the energy that they predict, until the
                     next refresh; and both as one vector, for checkpoints and messages

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
