"""Rules of selection, which say who takes part in a round: one object for each, found by its name.

A new rule is one ``Selection`` in ``SELECTIONS``. The setting, the plan that counts each client's
rounds, the server, the clients of a secure sum, which check the server's list, and the audit ask
it: none of them knows a name. Nothing here imports torch before a round is drawn.
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from fedlsg.config.rules import Rule, needs

AT_ONCE = 1024
"""64-bit numbers that are drawn together."""
ONLY_SERVER = (
    "its rate holds only where nobody but the server, which adds the noise, learns who was drawn"
)
IN_SECRET = "a server that adds the noise draws in secret: leave selection out"


def draw_order(clients: int, *, round: int, seed: int, per_round: int = 1) -> Iterator[int]:
    """All clients in the order of a round's public draw, whatever ``per_round`` is.

    The shuffle of Fisher and Yates, of which only positions that were swapped are kept. It is
    ``torch.randperm`` of the same generator: the i-th 32-bit number, modulo the clients that are
    left, chooses the client of the i-th place. (From 2^32 / 20 clients on torch shuffles in another
    way.)
    """
    import torch

    from fedlsg.randomness import public_generator

    generator = public_generator(seed, "clients", round)
    moved: dict[int, int] = {}  # the client at a position that is not its own
    place = 0
    while place < clients:
        words = torch.empty(AT_ONCE, dtype=torch.int64).random_(-(2**63), None, generator=generator)
        for word in words.tolist():
            for number in ((word >> 32) & 0xFFFFFFFF, word & 0xFFFFFFFF):
                if place == clients:
                    return
                here = moved.pop(place, place)
                other = place + number % (clients - place)
                if other == place:
                    yield here
                else:
                    yield moved.get(other, other)
                    moved[other] = here
                place += 1


@lru_cache(maxsize=1)  # by its arguments alone: never stale
def _turns(clients: int, seed: int) -> tuple[int, ...]:
    """All clients in the order of one public draw for the run, round 0."""
    return tuple(draw_order(clients, round=0, seed=seed))


def turn_order(clients: int, *, round: int, seed: int, per_round: int) -> Iterator[int]:
    """All clients in one public order, which continues after the last client of the round before.

    So no client has two rounds more than another one. Noise is planned for the client with most
    rounds: every client needs less of it than under ``draw_order``.
    """
    turns, start = _turns(clients, seed), (round - 1) * per_round
    return (turns[(start + place) % clients] for place in range(clients))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A rule of selection.

    name: in the settings.
    order: ``order(clients, per_round=, round=, seed=)`` gives all clients, best first.
    secret: whether the server alone draws, each client independently with the probability
        ``sample_rate``, and only noisy sums leave it. The accountant may then claim this rate of a
        Poisson sample. Every client can be drawn, and the order carries no information.

    A public rule is known before the run. A client is charged for the rounds that it has, and no
    amplification is claimed. The server may replace clients that fail by the next ones in the
    order.
    """

    name: str
    order: Callable[..., Iterator[int]] = draw_order
    secret: bool = False

    def select(
        self,
        clients: int,
        per_round: int,
        *,
        round: int,
        seed: int,
        available: Container[int] | None = None,
    ) -> list[int]:
        """The first ``per_round`` clients of a round's order, ascending.

        Under a secret rule they are those that can be drawn. ``available``: clients that can be
        selected; None for all, and then the draw is known before the run.
        """
        if per_round >= clients and available is None:
            return list(range(clients))
        order = self.order(clients, per_round=per_round, round=round, seed=seed)
        if available is not None:
            order = (client for client in order if client in available)
        return sorted(islice(order, per_round))

    def sample_rate(self, clients: int, per_round: int) -> float:
        """The probability of a client to be in a round that the accountant may claim.

        A secret rule draws each client with it; 1.0 for a public rule.
        """
        return per_round / clients if self.secret else 1.0

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The trust that the rule needs."""
        of = f"selection={self.name}"
        if self.secret:
            return (needs("trust=server and whole and private", ONLY_SERVER, of=of),)
        return (needs("trust!=server or of_examples or not private", IN_SECRET, of=of),)


UNIFORM = Selection(name="uniform")
"""A draw without replacement in each round."""
TURNS = Selection(name="turns", order=turn_order)
"""Every client equally often."""
POISSON = Selection(name="poisson", secret=True)
"""Each client on its own, in secret, by a server that adds the noise."""
SELECTIONS = {rule.name: rule for rule in (UNIFORM, TURNS, POISSON)}
"""All rules, by name."""


def selection_of(name: str | None, *, secret: bool) -> Selection:
    """The rule of a run by its name; without one, POISSON if the draw is ``secret``, else
    UNIFORM.
    """
    if name is not None:
        return SELECTIONS[name]
    return POISSON if secret else UNIFORM
