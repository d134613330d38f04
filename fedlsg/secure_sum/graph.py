"""The public graph of a secure sum: who shares masks with whom, and how many shares give a secret back.

Symbols:
    K  selected clients                 m  least number of clients in a sum, so D = K - m dropouts are tolerated
    t  tolerated colluders: clients that show the server all that they know; 1 at least, because every client of a sum
       reads the sum and knows its own noise
    k  degree of the graph              h  threshold: shares that give a secret back
    A closed neighbourhood is a client and its k neighbours. Each of these k + 1 clients holds one share of its secrets.

Source: Bell et al. 2020, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", sec. 3: a k-regular graph
in which (1) no neighbourhood has h colluders, (2) the honest survivors are connected, (3) at least h of each
neighbourhood survive. Harary 1962 for the graph. Bonawitz et al. 2017, "Practical Secure Aggregation for
Privacy-Preserving Machine Learning", for the consistency round.

What a server that lies about sets and keys can read
----------------------------------------------------
It tells client i that R_i announced keys, that U_i sent shares and that S_i survived, and has t colluders. R_i is the
roster as i knows it: clients **and both public keys of each**, of i itself those that it announced. Client i makes sure
that i is in S_i, S_i within U_i, U_i within R_i, and |S_i| >= m. It opens shares only of neighbours that sealed them
under R_i. It gives shares only after m clients of S_i, itself among them, have tagged (R_i, U_i, S_i) for it. It tags
once.

A colluder is every client that shows the server what it knows, and every one in whose place anybody is shown a share
key whose secret the server or a colluder knows: t in all, over all rosters of the attempt. Other keys may be shown as
the server likes: old ones, one client's in place of another's, a true share key next to a false mask key.

Theorem. Either no honest client gives a share, or there is one set S of at least m clients such that server and
colluders learn the sum over the honest clients of S, and nothing else about honest inputs.

0. True keys. Shares that i opens and tags that fit need the secret of a share key that i was shown. So they are those
   of a colluder, or of an honest j that was told the same R, in which the keys of j are its own of this attempt. So the
   masks of i with honest neighbours in U_i are made with true keys, whose secrets only shares of this attempt give.
1. One set. If two honest clients give shares, m clients tagged for each of them. At least 2 m - K > t did so for both,
   so one of these is honest. It tagged once, so both were told the same (R, U, S). That S is the set.
2. One secret. So honest clients give shares of b_j for j in S, of the mask key for j in U - S, and of nothing else;
   colluders have t < h shares of the other secret at most. For an honest j outside S, b_j stays unknown, and with it
   the vector of j. For an honest j outside U - S, the mask key stays unknown.
3. One sum. What is left of the masks in the vector of an honest i in S are those with honest neighbours j in U_i
   outside U - S. They are uniform and independent. So the vectors tell only sums over groups C for which each such mask
   is in two vectors of C or in none: for i in C, all these j are in C. Let C be a group, not empty, and let T be the m
   clients that tagged (R, U, S) for a client that gave shares.
   - If an honest client of T is in C: let B be the clients of C that are not in T. Both T and B are in S, so |S| >= m +
     |B|. Take B, the colluders and all clients outside S from the graph: at most |B| + t + D - |B| < k. The rest is
     connected (always, if the graph is complete). If C were not all honest clients of S, some i of T in C would have a
     neighbour j in S outside C. But U_i = U contains j, which contradicts what C is.
   - If none is: both T and C are in S, so |S| >= m + |C|. Of the k neighbours of a client i of C at most D are outside
     U_i, |C| - 1 in C, t colluders, and K - |S| <= D - |C| in U - S. These are at most 2 D + t - 1 < k, so i has a mask
     with somebody outside C, which contradicts what C is.
   So C is all honest clients of S.

It rests on m > (K + t) / 2, on k >= t + D + max(D, 1) or k = K - 1, and on h > t. The tests search small graphs for a
counterexample: with one neighbour less, or with m - 1 tags, they find some.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GraphPlan:
    """Degree k and threshold h of a graph of K clients (see ``plan_graph``)."""

    degree: int
    threshold: int
    colluders: int

    def __post_init__(self) -> None:
        holders = self.degree + 1
        if 2 * self.threshold <= holders + self.colluders:
            raise ValueError(
                f"expected a threshold above half of {holders} holders and {self.colluders} colluders, got"
                f" {self.threshold}: disjoint sets of clients could give both secrets of one client"
            )
        if self.threshold > holders:
            raise ValueError(f"expected a threshold of at most {holders} shares, got {self.threshold}")


def plan_graph(clients: int, *, min_survivors: int, colluders: int) -> GraphPlan:
    """Degree and threshold for K clients, m survivors and t colluders, with D = K - m dropouts.

        h = floor((k + 1 + t) / 2) + 1         k = t + D + max(D, 1), plus 1 if k K would be odd; K - 1 at most

    Guarantee, for **every** set of at most D dropouts and every set of at most t colluders:
    - 2 h > k + 1 + t: if each honest holder gives one of the two secrets of a client at most, nobody collects h shares
      of both, even without the tags. So h > t, too, and h is above half;
    - k + 1 - D >= h: at least h holders of each secret remain, so each dropout is recovered;
    - the graph is k-connected, so honest survivors stay connected without dropouts and colluders; k is as large as the
      theorem above needs.
    Differs from the paper, where k is logarithmic in K and the three hold except with probability 2^-sigma over a
    random graph, and where a server that deviates may learn sums over several large sets: here they always hold, for
    one set, and k grows with t and D, up to K - 1 (the complete graph of Bonawitz et al. 2017). A client keeps a share
    of its own secrets, as there. h is a function of k, not free.
    Raises ValueError if no graph of K clients has these properties: m <= (K + t) / 2, no honest survivor, or no
    colluder.
    """
    dropouts = clients - min_survivors
    if colluders < 1:
        raise ValueError(
            f"expected {colluders=} >= 1: every client of a sum reads the sum and knows its own noise, so one reader at"
            " least is among the clients"
        )
    if dropouts < 0 or min_survivors - colluders < 1:
        raise ValueError(f"expected {colluders} + 1 <= min_survivors <= {clients} clients, got {min_survivors}")
    if 2 * min_survivors <= clients + colluders:
        raise ValueError(
            f"expected min_survivors > (clients + colluders) / 2 = {(clients + colluders) / 2:g}, got {min_survivors}:"
            " otherwise sums of two separate sets of clients could be asked for"
        )
    degree = min(colluders + dropouts + max(dropouts, 1), clients - 1)
    degree += degree * clients % 2
    return GraphPlan(degree=degree, threshold=(degree + 1 + colluders) // 2 + 1, colluders=colluders)


def public_order(clients: Sequence[int], seed: bytes) -> list[int]:
    """The clients in an order that anyone derives from the public seed: by SHA-256 of seed and client."""
    return sorted(clients, key=lambda client: hashlib.sha256(seed + client.to_bytes(4, "little")).digest())


def harary_graph(order: Sequence[int], degree: int) -> dict[int, tuple[int, ...]]:
    """Neighbours of every client, ascending, in the Harary graph: the nearest on a circle, and the opposite one.

    Guarantee: k-regular, symmetric and k-connected.
    Raises ValueError unless 2 <= k < K (or k = 1, K = 2) and k K is even.
    """
    count = len(order)
    if not min(2, count - 1) <= degree < count or degree * count % 2:
        raise ValueError(f"expected {min(2, count - 1)} <= {degree=} < {count} clients, and their product even")
    steps = [step for distance in range(1, degree // 2 + 1) for step in (distance, -distance)]
    steps += [count // 2] * (degree % 2)
    return {who: tuple(sorted(order[(at + step) % count] for step in steps)) for at, who in enumerate(order)}
