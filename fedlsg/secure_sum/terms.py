"""The public terms of one attempt at a secure sum, and the graph of shared masks that follows from
them.

Symbols:
    K  selected clients
    m  least number of clients in a sum, so that D = K - m dropouts are tolerated
    t  tolerated colluders: clients that show the server all that they know; 1 at least, because
       every client of a sum reads the sum and knows its own noise
    k  degree of the graph
    h  threshold: shares that give a secret back
A closed neighbourhood is a client and its k neighbours. Each of these k + 1 clients holds one share
of its secrets.

Source: Bell et al. 2020, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", sec.
3: a k-regular graph in which (1) no neighbourhood has h colluders, (2) the honest survivors are
connected, (3) at least h of each neighbourhood survive. Harary 1962 for the graph. Bonawitz et al.
2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", for the consistency
round.

What a server that lies about sets and keys can read
----------------------------------------------------
The server has t colluders. It tells client i that R_i announced keys, U_i sent shares and S_i
survived. R_i is the roster as i knows it: clients **and both public keys of each**, of i itself
those that it announced. Client i checks that i is in S_i, S_i within U_i, U_i within R_i, and |S_i|
>= m. It opens shares only of neighbours that sealed them under R_i. It gives shares only after m
clients of S_i, itself among them, have tagged (R_i, U_i, S_i) for it. It tags once.

A colluder is every client that shows the server what it knows, and every one in whose place anybody
is shown a share key whose secret the server or a colluder knows: t in all, over all rosters of the
attempt. Other keys may be shown as the server likes: old ones, one client's in place of another's,
a true share key next to a false mask key.

Theorem. Either no honest client gives a share, or there is one set S of at least m clients such
that server and colluders learn the sum over the honest clients of S, and nothing else about honest
inputs.

0. True keys. Shares that i opens and tags that fit need the secret of a share key that i was shown.
   So they are those of a colluder, or of an honest j that was told the same R, in which the keys of
   j are its own of this attempt. So the masks of i with honest neighbours in U_i are made with true
   keys, whose secrets only shares of this attempt give.
1. One set. If two honest clients give shares, m clients tagged for each of them. At least 2 m - K >
   t did so for both, so one of these is honest. It tagged once, so both were told the same (R, U,
   S). That S is the set.
2. One secret. So honest clients give shares of b_j for j in S, of the mask key for j in U - S, and
   of nothing else; colluders have t < h shares of the other secret at most. For an honest j outside
   S, b_j stays unknown, and with it the vector of j. For an honest j outside U - S, the mask key
   stays unknown.
3. One sum. What is left of the masks in the vector of an honest i in S are those with honest
   neighbours j in U_i outside U - S. They are uniform and independent. So the vectors tell only
   sums over groups C for which each such mask is in two vectors of C or in none: for i in C, all
   these j are in C. Let C be a group, not empty, and let T be the m clients that tagged (R, U, S)
   for a client that gave shares.
   - If an honest client of T is in C: let B be the clients of C that are not in T. Both T and B are
     in S, so |S| >= m + |B|. Take B, the colluders and all clients outside S from the graph: at
     most |B| + t + D - |B| < k. The rest is connected (always, if the graph is complete). If C were
     not all honest clients of S, some i of T in C would have a neighbour j in S outside C. But
     U_i = U contains j, which contradicts what C is.
   - If none is: both T and C are in S, so |S| >= m + |C|. Of the k neighbours of a client i of C at
     most D are outside U_i, |C| - 1 in C, t colluders, and K - |S| <= D - |C| in U - S. These are
     at most 2 D + t - 1 < k, so i has a mask with somebody outside C, which contradicts what C is.
   So C is all honest clients of S.

It rests on m > (K + t) / 2, on k >= t + D + max(D, 1) or k = K - 1, and on h > t. The tests search
small graphs for a counterexample: with one neighbour less, or with m - 1 tags, they find some.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class GraphPlan:
    """A graph of K clients (see ``plan_graph``).

    degree: k.
    threshold: h.
    colluders: t.
    Raises ValueError unless (k + 1 + t) / 2 < h <= k + 1.
    """

    degree: int
    threshold: int
    colluders: int

    def __post_init__(self) -> None:
        holders = self.degree + 1
        if 2 * self.threshold <= holders + self.colluders:
            raise ValueError(
                f"expected a threshold above half of {holders} holders and {self.colluders} "
                f"colluders, got {self.threshold}: disjoint sets of clients could give both "
                "secrets of one client"
            )
        if self.threshold > holders:
            raise ValueError(
                f"expected a threshold of at most {holders} shares, got {self.threshold}"
            )


def plan_graph(clients: int, *, min_survivors: int, colluders: int) -> GraphPlan:
    """Degree and threshold for K clients, m survivors and t colluders, with D = K - m dropouts.

        h = floor((k + 1 + t) / 2) + 1         k = t + D + max(D, 1), plus 1 if k K would be odd; K
                                               - 1 at most

    Guarantee, for **every** set of at most D dropouts and every set of at most t colluders:
    - 2 h > k + 1 + t: if each honest holder gives one of the two secrets of a client at most,
      nobody collects h shares of both, even without the tags. So h > t, too, and h is above half;
    - k + 1 - D >= h: at least h holders of each secret remain, so each dropout is recovered;
    - the graph is k-connected, so honest survivors stay connected without dropouts and colluders; k
      is as large as the theorem above needs.
    Differs from the paper, where k is logarithmic in K and the three hold except with probability
    2^-sigma over a random graph, and where a server that deviates may learn sums over several large
    sets: here they always hold, for one set, and k grows with t and D, up to K - 1 (the complete
    graph of Bonawitz et al. 2017). A client keeps a share of its own secrets, as there. h is a
    function of k, not free.
    Raises ValueError if no graph of K clients has these properties: m <= (K + t) / 2, no honest
    survivor, or no colluder.
    """
    dropouts = clients - min_survivors
    if colluders < 1:
        raise ValueError(
            f"expected {colluders=} >= 1: every client of a sum reads the sum and knows its own "
            "noise, so one reader at least is among the clients"
        )
    if dropouts < 0 or min_survivors - colluders < 1:
        raise ValueError(
            f"expected {colluders} + 1 <= min_survivors <= {clients} clients, got {min_survivors}"
        )
    if 2 * min_survivors <= clients + colluders:
        raise ValueError(
            f"expected min_survivors > (clients + colluders) / 2 = {(clients + colluders) / 2:g}, "
            f"got {min_survivors}: otherwise sums of two separate sets of clients could be asked "
            "for"
        )
    degree = min(colluders + dropouts + max(dropouts, 1), clients - 1)
    degree += degree * clients % 2
    return GraphPlan(
        degree=degree, threshold=(degree + 1 + colluders) // 2 + 1, colluders=colluders
    )


def public_order(clients: Sequence[int], seed: bytes) -> list[int]:
    """The clients in a public order: by SHA-256 of seed and client."""
    return sorted(
        clients, key=lambda client: hashlib.sha256(seed + client.to_bytes(4, "little")).digest()
    )


def harary_graph(order: Sequence[int], degree: int) -> dict[int, tuple[int, ...]]:
    """Neighbours of every client, ascending: the nearest ones on a circle, and the opposite one if
    k is odd.

    Guarantee: k-regular, symmetric and k-connected.
    Raises ValueError unless 2 <= k < K (or k = 1, K = 2) and k K is even.
    """
    count = len(order)
    if not min(2, count - 1) <= degree < count or degree * count % 2:
        raise ValueError(
            f"expected {min(2, count - 1)} <= {degree=} < {count} clients, and their product even"
        )
    steps = [step for distance in range(1, degree // 2 + 1) for step in (distance, -distance)]
    steps += [count // 2] * (degree % 2)
    return {
        who: tuple(sorted(order[(at + step) % count] for step in steps))
        for at, who in enumerate(order)
    }


STAGES = ("keys", "shares", "masked", "agree", "unmask")
"""Stages of an attempt, in order."""
LEAST_BITS, MOST_BITS = 8, 64
MOST_CLIENTS, MOST_VALUES = 10_000, 2**30
_FIXED = struct.Struct("<32sQQIIIIB")
"""All terms but the clients' numbers, for the digest."""
_LABEL = b"fedlsg secure sum, version 2\0"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The public terms of an attempt, which server and clients know before it.

    run: 32 bytes that name the run.
    round, attempt: numbers; no pair of them comes twice in a run.
    clients: the selected clients, ascending (K numbers below 2^32).
    min_survivors: m, the least number of clients in a sum.
    colluders: t.
    length: values of a vector.
    bits: b, sums are modulo 2^b, 8 to 64.

    Guarantee: every key of an attempt depends on all of these, through ``digest``. Clients that
    hold different terms cannot open each other's shares.
    Raises ValueError for terms that are out of range or that no graph fits (see ``plan_graph``).
    """

    run: bytes
    round: int
    attempt: int
    clients: tuple[int, ...]
    min_survivors: int
    colluders: int
    length: int
    bits: int

    def __post_init__(self) -> None:
        if len(self.run) != 32:
            raise ValueError(f"expected 32 bytes that name the run, got {len(self.run)}")
        if not (0 <= self.round < 2**64 and 0 <= self.attempt < 2**64):
            raise ValueError(f"expected {self.round=} and {self.attempt=} from 0 to 2^64 - 1")
        if not LEAST_BITS <= self.bits <= MOST_BITS:
            raise ValueError(f"expected {LEAST_BITS} <= {self.bits=} <= {MOST_BITS}")
        if not 1 <= self.length <= MOST_VALUES:
            raise ValueError(f"expected 1 <= {self.length=} <= 2^30")
        if len(self.clients) > MOST_CLIENTS or tuple(sorted(set(self.clients))) != self.clients:
            raise ValueError(f"expected at most {MOST_CLIENTS} clients, ascending without repeats")
        if self.clients and not 0 <= self.clients[0] <= self.clients[-1] < 2**32:
            raise ValueError("expected clients from 0 to 2^32 - 1")
        self.plan  # noqa: B018 - raises for terms that no graph fits

    @cached_property
    def plan(self) -> GraphPlan:
        """Degree and threshold."""
        return plan_graph(
            len(self.clients), min_survivors=self.min_survivors, colluders=self.colluders
        )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all terms, 32 bytes."""
        numbers = (
            self.round,
            self.attempt,
            len(self.clients),
            self.min_survivors,
            self.colluders,
            self.length,
        )
        fixed = _FIXED.pack(self.run, *numbers, self.bits)
        return hashlib.sha256(
            _LABEL + fixed + b"".join(c.to_bytes(4, "little") for c in self.clients)
        ).digest()

    @cached_property
    def neighbours(self) -> dict[int, tuple[int, ...]]:
        """The neighbours of each client, ascending, without the client itself."""
        return harary_graph(public_order(self.clients, self.digest), self.plan.degree)

    @cached_property
    def points(self) -> dict[int, int]:
        """The point of each client's share on a polynomial: its place among the clients, from 1."""
        return {client: place for place, client in enumerate(self.clients, 1)}

    def holders(self, client: int) -> tuple[int, ...]:
        """The closed neighbourhood of a client, ascending, whose clients hold shares of its
        secrets.
        """
        return tuple(sorted((client, *self.neighbours[client])))


class SecureSumError(ValueError):
    """A message or a request that the protocol forbids.

    The text has no secret: it may be sent to the other side and written to a log.
    """


class WrongSharesError(SecureSumError):
    """Shares that do not give the secret that ``owner`` announced: it dealt wrong ones, or several
    holders lie.
    """

    def __init__(self, what: str, owner: int) -> None:
        kept = "public key" if what == "mask key" else "commitment"
        super().__init__(f"{what} of client {owner}: the shares do not fit its {kept}")
        self.owner = owner


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """An attempt that ended without a sum. No input, and no sum of a part of the inputs, was
    revealed.

    stage: keys, shares, masked, agree or unmask.
    reason: in words, for a message.
    alive: number of clients whose message of that stage was accepted.
    owner: the client whose shares, more than h, do not give the secret that it announced; else
        None.
    """

    stage: str
    reason: str
    alive: int
    owner: int | None = None

    def __str__(self) -> str:
        return f"secure sum given up in stage {self.stage}: {self.reason}"
