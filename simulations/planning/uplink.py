"""How the values of a client travel to the server: public, so that server, client and readers of a
record agree.
"""

from dataclasses import dataclass

from fedlsg.payload import Codec, Dither, IndexMode
from fedlsg.state import RoundPlan


@dataclass(frozen=True, kw_only=True)
class Uplink:
    """codec: of the values. index_mode: how payloads say which coordinates they hold. keeps_memory:
    whether clients keep what a codec left out, for the next payload. seed: of rounding.
    """

    codec: Codec
    index_mode: IndexMode
    keeps_memory: bool
    seed: int

    @property
    def explicit(self) -> bool:
        """Whether payloads hold the positions of their values."""
        return self.index_mode == "explicit"

    def dither(self, client: int, plan: RoundPlan) -> Dither:
        """The rounding of a client's values."""
        return Dither(seed=self.seed, client=client, noise_std=plan.noise_std)
