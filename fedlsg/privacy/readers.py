"""Who reads what a round releases, and which noise protects against each reader.

Symbols: m fewest shares of noise in a sum, t readers among its clients, sigma the noise multiplier that is charged.

Every client of a sum gets the next weights and knows the noise that it added, so its share protects others from
everybody but itself. A client adds noise of sigma C / sqrt(m - t): the m - t shares that t clients do not know add up
to noise of deviation sigma C.

    reader                                        shares it knows    noise multiplier against it
    outside: sees the released weights            0                  sigma sqrt(m / (m - t))
    server: sees every sum                        0                  sigma sqrt(m / (m - t))
    participant: a client of the sum              1                  sigma sqrt((m - 1) / (m - t))
    participants: t of them                       t                  sigma
    server_and_participants: t with the server    t                  sigma

A sum of more clients, or without some of these readers, has more shares that they do not know, never fewer. More noise
is post-processing, so the numbers hold for every sum of at least m. Where noise is not shared (m = t = 0), sigma
protects against each of them. A server that adds the noise itself knows it: nothing is promised against it.
"""

import math
from typing import Literal, get_args

Reader = Literal["outside", "server", "participant", "participants", "server_and_participants"]
READERS: tuple[Reader, ...] = get_args(Reader)
STRONGEST: Reader = "server_and_participants"
"""The reader that knows most: noise is calibrated against it."""
WITH_SERVER: tuple[Reader, ...] = ("server", "server_and_participants")
FEWEST = 2
"""Survivors of a secure sum, at least, in entries that do not say how many there are."""


def shares_known(reader: Reader, colluders: int) -> int:
    """How many of a sum's shares of noise a reader knows, of t = ``colluders``."""
    return {"outside": 0, "server": 0, "participant": min(1, colluders)}.get(reader, colluders)


def shares_hidden(min_survivors: int, colluders: int) -> tuple[int, ...]:
    """The numbers of shares that some reader does not know, in sums of m: t participants, one, and nobody of them."""
    return tuple(sorted({min_survivors - shares_known(reader, colluders) for reader in READERS}))


def multiplier_against(reader: Reader, noise_multiplier: float, *, min_survivors: int, colluders: int) -> float:
    """The noise multiplier that protects against a reader, where ``noise_multiplier`` is that of m - t shares.

    Never above the exact one, whatever is rounded. m = 0: the noise is not shared, and protects alike against all.
    """
    known = shares_known(reader, colluders)
    if known == colluders:
        return noise_multiplier
    ratio = math.sqrt((min_survivors - known) / (min_survivors - colluders))
    return noise_multiplier * ratio * (1 - 4 * 2.0**-53)
