"""What one round releases of a client whose whole data is the unit of privacy."""

from dataclasses import dataclass

from fedlsg.privacy.sampling import check_sample_rate


@dataclass(frozen=True, kw_only=True)
class ClientUnit:
    """Client-level privacy of a run.

    ``sample_rate``: chance of each client to be in a round, independently of the others (Poisson), by draws that only
    the server knows. It is 1.0 where the server is not trusted: it sees who takes part.
    ``at_server``: the server adds the noise, and is trusted with updates that have none; otherwise each client adds
    its share.
    """

    sample_rate: float
    at_server: bool

    def __post_init__(self) -> None:
        check_sample_rate(self.sample_rate)
        if not self.at_server and self.sample_rate < 1:
            raise ValueError(
                f"expected sample_rate=1.0, got {self.sample_rate}: a server that sees who takes part is not fooled by "
                "the draw, so no amplification is claimed"
            )
