"""What a trusted server needs to draw clients, to be charged, and to add the noise."""

from collections.abc import Callable
from dataclasses import dataclass

from fedlsg.client_level.adaptive_clip import AdaptiveClip
from fedlsg.privacy import Ledger
from fedlsg.privacy.run_ledger import ClientCharges
from fedlsg.randomness import SecretStream


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerNoise:
    """What a server needs to add the noise of client-level privacy.

    ``ledger``: of ``SERVER``, for all clients. ``budget``: (epsilon, delta) that it must not pass, None without one.
    ``stream``: secret draws by purpose and round. ``reproducible``: they come from the seed, NOT PRIVATE.
    """

    ledger: ClientCharges | Ledger
    budget: tuple[float, float] | None
    stream: Callable[[str, int], SecretStream]
    adaptive: AdaptiveClip | None = None
    reproducible: bool = False
