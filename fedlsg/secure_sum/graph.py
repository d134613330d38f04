"""The public graph of a secure sum: who shares masks with whom, and how many shares give a secret back.

Symbols:
    K  selected clients                 m  least number of clients in a sum, so K - m dropouts are tolerated
    t  tolerated colluders: clients that show the server all that they know
    k  degree of the graph              h  threshold: shares that give a secret back
    A closed neighbourhood is a client and its k neighbours. Each of these k + 1 clients holds one share of its secrets.

Source: Bell et al. 2020, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", sec. 3: a k-regular graph
in which (1) no neighbourhood has h colluders, (2) the honest survivors are connected, (3) at least h of each
neighbourhood survive. Harary 1962 for the graph.
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

        h = floor((k + 1 + t) / 2) + 1         k = max(t + D + max(D, 1), 2), plus 1 if k K would be odd (K = 2: k = 1)

    Guarantee, for **every** set of at most D dropouts and every set of at most t colluders:
    - 2 h > k + 1 + t: if each honest holder gives one of the two secrets of a client at most, nobody collects h shares
      of both, even if the server tells clients different things. So h > t, too, and h is above half;
    - k + 1 - D >= h: at least h holders of each secret remain, so each dropout is recovered;
    - k >= t + D + 1: the graph is k-connected, so honest survivors stay connected without dropouts and colluders.
    Differs from the paper, where k is logarithmic in K and the three hold except with probability 2^-sigma over a
    random graph: here they always hold, and k grows with t and D, up to K - 1 (the complete graph of Bonawitz et
    al. 2017). A client keeps a share of its own secrets, as there. h is a function of k, not free.
    Raises ValueError if no graph of K clients has these properties: m <= (K + t) / 2, or no honest survivor.
    """
    dropouts = clients - min_survivors
    if colluders < 0 or dropouts < 0 or min_survivors < max(colluders + 1, 2):
        raise ValueError(
            f"expected {colluders=} >= 0 and {max(colluders + 1, 2)} <= min_survivors <= {clients} clients, got "
            f"{min_survivors}"
        )
    if 2 * min_survivors <= clients + colluders:
        raise ValueError(
            f"expected min_survivors > (clients + colluders) / 2 = {(clients + colluders) / 2:g}, got {min_survivors}:"
            " otherwise sums of two separate sets of clients could be asked for"
        )
    degree = max(colluders + dropouts + max(dropouts, 1), min(2, clients - 1))
    degree = min(degree + degree * clients % 2, clients - 1)
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
