"""One entry of a privacy ledger: the steps that one client took in one attempt of one round."""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from fedlsg.accounting.events import checked_noise_multiplier, checked_sample_rate, checked_steps

ADJACENCY = "add/remove"
MECHANISMS = ("dp", "clip-only", "noise-only", "none")
LONGEST_RUN = 64


class LedgerError(ValueError):
    """A ledger that cannot be trusted, or a charge that it must not accept."""


Key = tuple[int, str, int, int]
"""Client, run, round, attempt."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One attempt of one client in one round: ``steps`` noisy steps on its ``num_examples`` examples.

    ``noise_multiplier`` is the effective one (noise s.d. over joint sensitivity), 0.0 unless the mechanism is
    "dp". ``reproducible`` marks noise from a known seed: it is accounted as if it were secret, and its
    reports say NOT PRIVATE. ``run`` names the run in a ledger of several runs (that of a deployed client); it is "" in
    a simulation, whose ledger belongs to one run.
    """

    client: int
    round: int
    attempt: int
    steps: int
    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    num_examples: int
    mechanism: str
    reproducible: bool = False
    run: str = ""
    adjacency: ClassVar[str] = ADJACENCY

    def __post_init__(self) -> None:
        for name in ("client", "round", "attempt", "num_examples"):
            value = getattr(self, name)
            if type(value) is not int or value < (1 if name == "num_examples" else 0):
                raise ValueError(f"expected a non-negative integer {name}, got {value!r} (num_examples at least 1)")
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"expected mechanism={self.mechanism!r} among {MECHANISMS}")
        if type(self.reproducible) is not bool:
            raise ValueError(f"expected {self.reproducible=} to be True or False")
        if type(self.run) is not str or len(self.run) > LONGEST_RUN:
            raise ValueError(f"expected {self.run=} to be the name of a run, {LONGEST_RUN} characters at most")
        checked_steps(self.steps)
        checked_sample_rate(self.sample_rate)
        if self.mechanism == "dp":
            checked_noise_multiplier(self.noise_multiplier)
        elif self.noise_multiplier != 0.0:
            raise ValueError(
                f"expected {self.noise_multiplier=} to be 0.0 under mechanism={self.mechanism!r}: not accounted"
            )
        bounded = self.mechanism in ("dp", "clip-only")
        if not self.clip_norm > 0 or (bounded and not math.isfinite(self.clip_norm)):
            raise ValueError(f"expected a finite {self.clip_norm=} > 0 (inf where nothing is clipped)")

    @property
    def key(self) -> Key:
        return self.client, self.run, self.round, self.attempt


FIELDS = tuple(field.name for field in fields(Entry))


def encode_entry(entry: Entry) -> dict[str, Any]:
    """An entry as JSON values: an infinite clip norm is null; ``run`` is left out if it is empty."""
    record = {name: getattr(entry, name) for name in FIELDS if name != "run" or entry.run}
    return record | ({"clip_norm": None} if math.isinf(entry.clip_norm) else {})


def decode_entry(record: dict[str, Any]) -> Entry:
    """The entry of JSON values. Raises TypeError, KeyError or ValueError for anything else."""
    if record["clip_norm"] is None:
        record["clip_norm"] = math.inf
    return Entry(**record)
