"""Public terms of a federation: what each client trains with, and what is common to all."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedlsg.method import LocalTraining
from fedlsg.payload import Codec, IndexMode
from fedlsg.state import ClientTerms


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
