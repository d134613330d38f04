"""What a ledger's entries amount to is extended by new ones, and found by round: equal to a look at
all of them, at a cost that does not grow with the rounds.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from hypothesis import given
from hypothesis import strategies as st

from fedlsg.privacy import Entry
from fedlsg.privacy.ledger import Charges
from fedlsg.privacy.totals import Totals


def entry(round: int, attempt: int = 0, run: str = "", **changes: Any) -> Entry:
    fields: dict[str, Any] = {
        "client": 0,
        "steps": 1,
        "sample_rate": 0.05,
        "noise_multiplier": 2.0,
        "clip_norm": 0.5,
        "num_examples": 100,
        "mechanism": "dp",
    }
    return Entry(round=round, attempt=attempt, run=run, **(fields | changes))


class Counted(Sequence[Entry]):
    """Entries that count how many of them were looked at."""

    def __init__(self) -> None:
        self.all, self.seen = list[Entry](), 0

    @overload
    def __getitem__(self, place: int) -> Entry: ...

    @overload
    def __getitem__(self, place: slice) -> list[Entry]: ...

    def __getitem__(self, place: int | slice) -> Entry | list[Entry]:
        found = self.all[place]
        self.seen += len(found) if isinstance(found, list) else 1
        return found

    def __iter__(self) -> Iterator[Entry]:
        self.seen += len(self.all)
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)


class InMemory(Charges):
    """Charges without a file."""

    def __init__(self) -> None:
        super().__init__()
        self.path, self.client, self._entries = Path("nowhere"), 0, Counted()

    @property
    def entries(self) -> Counted:
        return self._entries


def questions(charges: Charges, round: int) -> tuple[Any, ...]:
    """What each round asks of a client's charges."""
    return (
        charges.next_attempt(round),
        charges.of_round(round),
        charges.events(),
        charges.has_epsilon,
    )


def test_a_late_round_looks_at_no_more_entries_than_an_early_one():
    charges, seen = InMemory(), dict[int, int]()
    for round in range(1, 301):
        charges.entries.all.append(entry(round))
        before = charges.entries.seen
        questions(charges, round)
        seen[round] = charges.entries.seen - before
    assert seen[2] == seen[300] <= 2


rounds = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(["", "a"]), st.booleans(), st.booleans()),
    max_size=12,
)


@given(rounds)
def test_what_is_extended_is_what_a_look_at_all_entries_finds(made):
    charges = InMemory()
    for number, (round, run, known, private) in enumerate(made):
        kind = {} if private else {"mechanism": "none", "noise_multiplier": 0.0}
        charges.entries.all.append(entry(round, number, run, reproducible=known, **kind))
        every = charges.entries.all
        for asked in range(1, 5):
            for name in ("", "a"):
                own = [one for one in every if (one.round, one.run) == (asked, name)]
                assert list(charges.of_round(asked, name)) == own
                attempts = [one.attempt for one in own]
                assert charges.next_attempt(asked, name) == max(attempts, default=-1) + 1
        assert charges.has_epsilon == all(one.has_epsilon for one in every)
        assert charges.reproducible == any(one.reproducible for one in every)
        assert charges.events() == Totals().extended(every).events()
