"""Public terms of a federation: what each client trains with, and what is common to all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedlsg.method import LocalTraining
from fedlsg.payload import Codec, IndexMode
from fedlsg.privacy import Mechanism


@dataclass(frozen=True, kw_only=True)
class ClientTerms:
    """Public terms of one client: declared examples N_k, Poisson rate, nominal noise multiplier.

    ``prune_noise_multiplier`` is that of round 0, in which pruning reads the data.
    """

    num_examples: int
    sample_rate: float
    noise_multiplier: float
    prune_noise_multiplier: float = 0.0

    def mechanism(self, common: Mechanism) -> Mechanism:
        """The federation's mechanism at this client's noise multiplier."""
        return replace(common, noise_multiplier=self.noise_multiplier) if common.adds_noise else common

    def of_round_0(self) -> "ClientTerms":
        """The terms of the pruning round: every example takes part."""
        return replace(self, sample_rate=1.0, noise_multiplier=self.prune_noise_multiplier)


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """Public constants of a federation. ``terms`` are per partition; ``local`` is the common local training."""

    terms: Sequence[ClientTerms]
    clients_per_round: int
    local: LocalTraining
    codec: Codec
    index_mode: IndexMode = "derived"
    min_survivors: int = 1
    timeout: float = 3600.0
    run_dir: str = ""
