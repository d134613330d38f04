"""Who takes part in a round: one object for each rule of selection, found by its name.

A new rule is one ``Selection`` in ``SELECTIONS``. The setting, the plan that counts each client's
rounds, the server, the clients of a secure sum, which check whom the server names, and the audit
ask it: none of them knows a name. Nothing here imports torch before a round is drawn.
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
    """All clients in the order of a round's public draw, the same for any ``per_round``: the first
    ones are selected.

    The shuffle of Fisher and Yates, of which only positions that were swapped are kept. It is
    ``torch.randperm`` of the same generator: its i-th 32-bit number, modulo the clients that are
    left, says whom the i-th place gets. (From 2^32 / 20 clients on torch shuffles in another way.)
    """
    import torch

    from fedlsg.randomness import public_generator

    generator, moved, place = public_generator(seed, "clients", round), dict[int, int](), 0
    while place < clients:
        drawn = torch.empty(AT_ONCE, dtype=torch.int64).random_(-(2**63), None, generator=generator)
        for number in drawn.tolist():
            for half in ((number >> 32) & 0xFFFFFFFF, number & 0xFFFFFFFF):
                if place == clients:
                    return
                here, other = moved.pop(place, place), place + half % (clients - place)
                if other == place:
                    yield here
                else:
                    yield moved.get(other, other)
                    moved[other] = here
                place += 1


@lru_cache(maxsize=1)  # by its arguments alone: never stale
def _turns(clients: int, seed: int) -> tuple[int, ...]:
    return tuple(draw_order(clients, round=0, seed=seed))


def turn_order(clients: int, *, round: int, seed: int, per_round: int) -> Iterator[int]:
    """All clients in one public order, from where the round before ended: nobody has two rounds
    more than another.

    Noise is planned for the client with most rounds, so every client gets less of it than under
    ``draw_order``.
    """
    turns, start = _turns(clients, seed), (round - 1) * per_round
    return (turns[(start + place) % clients] for place in range(clients))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """``name``: in the settings. ``order``: all clients, best first, from their number,
    ``per_round``, round and seed.

    A public rule is known before the run: what a client is charged for follows from the rounds that
    it has, and no amplification is claimed (``sample_rate``). The server may replace clients that
    fail by the next ones in the order.
    ``secret``: the server alone draws, each client on its own with the chance that is claimed, and
    only noisy sums leave it: then that chance is the rate of a Poisson sample of clients, for the
    accountant. All who are there can be drawn, and the order carries no information.
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
        """Partition ids that can take part in ``round``, ascending: those of a public rule do.

        ``available``: only these clients can be selected; all of them are if they are fewer than
        ``per_round``. Without it every client can, and the draw is known before the run.
        """
        if per_round >= clients and available is None:
            return list(range(clients))
        order = self.order(clients, per_round=per_round, round=round, seed=seed)
        there = order if available is None else (client for client in order if client in available)
        return sorted(islice(there, per_round))

    def sample_rate(self, clients: int, per_round: int) -> float:
        """The chance of a client to be in a round that may be claimed, and that a secret rule draws
        it with.

        1.0 where it is known who is in it.
        """
        return per_round / clients if self.secret else 1.0

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What follows from who knows the draw."""
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
    """The rule of a run; without a name, that of its trust: ``secret`` where a server draws and
    adds the noise.
    """
    return SELECTIONS[name] if name is not None else POISSON if secret else UNIFORM
