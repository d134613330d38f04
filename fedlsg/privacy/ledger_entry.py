"""An entry of a privacy ledger, and the lines of a ledger: JSON in a hash chain.

The first line is a header (schema, client, adjacency), every later line an entry. Each line has
``prev``, the SHA-256 of the valid line before it, so an edit, a removal or a swap is found on
reading, except at the very end. Each line ends with ``sha256``, its own digest, which also finds
damage to the last line. (Files of schema 1 lack it.)

A crash may tear the line that is being appended. It was not synced, so nothing was drawn for it,
and it does not count; the next append removes it. Only the last line may be torn, and only as a
crash does it: what is left is the beginning of a record, without its line feed (``may_be_torn``).
Any other text is damage. Files of older versions keep a torn line in the middle: there the ``prev``
of the next line skips it. A disk that loses the end of a record which was synced leaves the same
as a crash: nothing in the file shows that.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from fedlsg.accounting.checks import (
    MAX_STEPS,
    checked_log_ratio,
    checked_noise_multiplier,
    checked_sample_rate,
    checked_steps,
)
from fedlsg.config.isolation import CHECKED, LEVELS
from fedlsg.config.mechanisms import KINDS
from fedlsg.config.units import EXAMPLE, unit_named
from fedlsg.privacy.sampling import ZERO_OUT

ADJACENCY = "add/remove"
SERVER = -1
"""The client of entries that the server makes for all of its clients, at client level with its own
noise.
"""
LONGEST_RUN = 64
COUNTS = (
    "client",
    "round",
    "attempt",
    "num_examples",
    "batches",
    "first_batch",
    "min_survivors",
    "colluders",
)


class LedgerError(ValueError):
    """A ledger that cannot be trusted, or a charge that it must not accept."""


class BudgetError(ValueError):
    """A charge that would pass a privacy budget; nothing was charged."""


Key = tuple[int, str, int, int]
"""Client, run, round, attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One attempt of one client in one round: ``steps`` noisy steps on its ``num_examples``
    examples.

    With a ``unit`` that is a person's (``units``), ``num_examples`` counts persons.
    With ``unit="client"``: one noisy sum of whole updates. ``sample_rate`` is then the chance of a
    client to be in it, 1.0 where the server knows who is. An entry of ``SERVER`` is for every
    client of the run: its ``num_examples`` is the number of clients.

    ``noise_multiplier`` is the effective one (noise s.d. over joint sensitivity), 0.0 unless the
    mechanism is "dp". ``reproducible`` marks noise from a known seed: it counts in a budget as if
    it were secret, and its epsilon is infinite. ``run`` names the run in a ledger of several runs
    (that of a deployed client); it is "" in a simulation, whose ledger belongs to one run.
    ``log_ratio`` is Lambda of all ``steps`` (``Event``): 0.0 for Gaussian noise, and unless the
    mechanism is "dp".

    ``batches``: of an epoch of shuffled batches (``sampling``), 0 for Poisson batches. The steps
    are then the batches ``first_batch``, ``first_batch`` + 1, ... that the client took in this run,
    and what they cost follows from the epochs that they touch. ``sample_rate`` is 1.0 then: who
    reads the entry as ``steps`` releases of all examples counts too much, and never too little.

    ``min_survivors``, ``colluders``: m and t of a sum whose clients share the noise (``totals``); 0
    where each payload has all of it. ``noise_multiplier`` is then that of m - t shares, which
    protects against t of the sum's clients.

    ``isolation``: the level at which the code of users ran (``fedlsg.config.isolation``).
    ``batched``: a function of the user made rows of several positions in one call, at the user's
    word. Neither changes what the entry costs: they say what its epsilon rests on.
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
    log_ratio: float = 0.0
    unit: str = EXAMPLE.name
    batches: int = 0
    first_batch: int = 0
    min_survivors: int = 0
    colluders: int = 0
    isolation: str = CHECKED
    batched: bool = False

    def difference(self, charge: Mapping[str, object], *, rounding: float = 0.0) -> str:
        """The fields of which ``charge`` says something else, as "clip_norm=0.25, not 0.5"; empty
        if none. ``rounding``: relative, of floats.
        """

        def same(here: object, there: object) -> bool:
            if isinstance(here, float) and isinstance(there, float):
                return math.isclose(here, there, rel_tol=rounding)
            return here == there

        both = {name: (getattr(self, name), value) for name, value in charge.items()}
        return ", ".join(
            f"{name}={here!r}, not {there!r}"
            for name, (here, there) in both.items()
            if not same(here, there)
        )

    def __post_init__(self) -> None:
        for name in COUNTS:
            value = getattr(self, name)
            if type(value) is not int or not self._least(name) <= value <= MAX_STEPS:
                raise ValueError(
                    f"expected a non-negative integer {name} up to 2^53, got {value!r} "
                    "(num_examples at least 1)"
                )
        unit = unit_named(self.unit)
        if self.mechanism not in KINDS:
            raise ValueError(f"expected mechanism={self.mechanism!r} among {tuple(KINDS)}")
        if self.isolation not in LEVELS:
            raise ValueError(f"expected isolation={self.isolation!r} among {LEVELS}")
        if type(self.reproducible) is not bool or type(self.batched) is not bool:
            raise ValueError(
                f"expected {self.reproducible=} and {self.batched=} to be True or False"
            )
        if type(self.run) is not str or len(self.run) > LONGEST_RUN:
            raise ValueError(
                f"expected {self.run=} to be the name of a run, {LONGEST_RUN} characters at most"
            )
        checked_steps(self.steps)
        checked_sample_rate(self.sample_rate)
        if self.private:
            checked_noise_multiplier(self.noise_multiplier)
        elif self.noise_multiplier != 0.0:
            raise ValueError(
                f"expected {self.noise_multiplier=} to be 0.0 under mechanism={self.mechanism!r}: "
                "not accounted"
            )
        if checked_log_ratio(self.log_ratio) and not self.private:
            raise ValueError(
                f"expected {self.log_ratio=} to be 0.0 under mechanism={self.mechanism!r}: not "
                "accounted"
            )
        if self.batches and (self.sample_rate != 1.0 or self.log_ratio or not unit.single):
            raise ValueError(
                "expected sample_rate=1.0, log_ratio=0.0 and unit='example' with shuffled batches, "
                f"got {self.sample_rate=}, {self.log_ratio=}, {self.unit=}: no amplification is "
                "claimed for them"
            )
        if self.batches > self.num_examples or (self.first_batch and not self.batches):
            raise ValueError(
                f"expected {self.batches=} <= {self.num_examples=}, and "
                f"first_batch={self.first_batch} with batches"
            )
        bounded = KINDS[self.mechanism].clips
        shares = self.private and 1 <= self.colluders < self.min_survivors
        if (self.min_survivors or self.colluders) and not shares:
            raise ValueError(
                f"expected 1 <= {self.colluders=} < {self.min_survivors=} under mechanism='dp', "
                f"got mechanism={self.mechanism!r}: every client of a sum knows its own share of "
                "the noise"
            )
        if not self.clip_norm > 0 or (bounded and not math.isfinite(self.clip_norm)):
            raise ValueError(
                f"expected a finite {self.clip_norm=} > 0 (inf where nothing is clipped)"
            )

    def _least(self, name: str) -> int:
        by_server = name == "client" and unit_named(self.unit).whole and self.private
        return 1 if name == "num_examples" else SERVER if by_server else 0

    @property
    def private(self) -> bool:
        """Whether its mechanism has an epsilon, which the accountant composes."""
        return KINDS[self.mechanism].private

    @property
    def has_epsilon(self) -> bool:
        """Whether it has a finite epsilon: its mechanism is private, and its noise is secret."""
        return self.private and not self.reproducible

    @property
    def adjacency(self) -> str:
        """What a neighbour of the data is: an example more or less, or one whose gradient is made
        0.
        """
        return ZERO_OUT if self.batches else ADJACENCY

    @property
    def key(self) -> Key:
        return self.client, self.run, self.round, self.attempt


FIELDS = tuple(field.name for field in fields(Entry))
kind_of: Callable[[Entry], Hashable] = attrgetter(
    *(n for n in FIELDS if n not in ("client", "round", "attempt"))
)
"""All of an entry but whose and when it is: rows of entries of the same kinds cost the same,
against every reader.
"""
OPTIONAL = {
    "run": "",
    "log_ratio": 0.0,
    "unit": EXAMPLE.name,
    "batches": 0,
    "first_batch": 0,
    "min_survivors": 0,
    "colluders": 0,
    "isolation": CHECKED,
    "batched": False,
}
"""Fields that a line leaves out at these values: lines from before these fields are still written
the same.
"""


def encode_entry(entry: Entry) -> dict[str, Any]:
    """An entry as JSON values: an infinite clip norm is null; ``OPTIONAL`` fields are left out at
    their values.
    """
    values = {name: getattr(entry, name) for name in FIELDS}
    record = {name: value for name, value in values.items() if OPTIONAL.get(name) != value}
    return record | ({"clip_norm": None} if math.isinf(entry.clip_norm) else {})


def decode_entry(record: dict[str, Any]) -> Entry:
    """The entry of JSON values. Raises TypeError, KeyError or ValueError for anything else."""
    if record["clip_norm"] is None:
        record["clip_norm"] = math.inf
    return Entry(**record)


def encode_entries(entries: Sequence[Entry]) -> dict[str, Any]:
    """Entries as JSON values, by field: a list with one value each, or a single value that all of
    them have.
    """
    records = [encode_entry(entry) for entry in entries]
    names = [name for name in FIELDS if any(name in record for record in records)]
    columns = {name: [record.get(name, OPTIONAL.get(name)) for record in records] for name in names}
    same = {
        name: column[0]
        for name, column in columns.items()
        if name != "client" and len(set(column)) == 1
    }
    return columns | same


def decode_entries(columns: dict[str, Any]) -> list[Entry]:
    """The entries of JSON values. Raises TypeError, KeyError or ValueError for anything else."""
    number = len(columns["client"])
    each = {
        name: column if isinstance(column, list) else [column] * number
        for name, column in columns.items()
    }
    rows = zip(*each.values(), strict=True)
    return [decode_entry(dict(zip(each, row, strict=True))) for row in rows]


SCHEMA = 2
UNSEALED = 1
"""The schema whose lines have no digest of their own."""
GENESIS = "0" * 64
"""The hash before the first line."""


def sha256(line: bytes) -> str:
    """The hash of a line, as hexadecimal digits."""
    return hashlib.sha256(line).hexdigest()


def check_line(line: bytes, record: dict[str, Any], previous: str, *, sealed: bool = True) -> None:
    """Take the links of the chain out of a line's record. Raises LedgerError where they are wrong,
    KeyError without.
    """
    if record.pop("prev") != previous:
        raise LedgerError(
            "it does not continue the line before: a line was edited, removed or moved"
        )
    record.pop("sha256", None)
    if sealed and _seal(line[:-_SEAL] + b"}") != line[-_SEAL:]:
        raise LedgerError("the line does not match its digest")


def encode_header(client: int) -> bytes:
    """The first line of the ledger of ``client``, without its line feed."""
    return encode_line({"schema": SCHEMA, "client": client, "adjacency": ADJACENCY}, GENESIS)


def encoded_beginning(client: int) -> bytes:
    """How every line of an entry of ``client`` begins."""
    return f'{{"client": {client}, "round": '.encode()


def may_be_torn(line: bytes, beginnings: Iterable[bytes], previous: str) -> bool:
    """Whether a crash may have left a line of a record that begins in one of these ways, and whose
    ``prev`` is ``previous``: a part from its beginning, with all that it has.
    """
    begun = any(line.startswith(each[: len(line)]) for each in beginnings)
    _, _, link = line.partition(b'"prev": "')
    return begun and bool(_PRINTED.fullmatch(line)) and previous.encode().startswith(link[:64])


def client_of_torn_header(line: bytes) -> int | None:
    """The client of a header that a crash tore: -1 where the line does not say it yet, None for
    what is not a part of a header.
    """
    named = _HEADER.match(line)
    digits = (named and {b"": b"0", b"-": b"-1"}.get(named[1], named[1])) or b"0"
    if not encode_header(int(digits)).startswith(line):
        return None
    return int(digits) if named and named[2] else -1


def has_its_end(line: bytes) -> bool:
    """Whether a line is as long as it was, also if its last byte was changed: a torn line is
    shorter.
    """
    return bool(_END.search(line))


def encode_line(record: Mapping[str, Any], previous: str) -> bytes:
    """One line, without its line feed, chained to the hash of the valid line before it; its own
    digest ends it.
    """
    body = json.dumps({**record, "prev": previous}, allow_nan=False).encode()
    return body[:-1] + _seal(body)


def lines_with_hashes(content: bytes) -> Iterator[tuple[bytes, str]]:
    """The lines that may be entries, without their line feed, and the hash of each."""
    for line in content.split(b"\n"):
        if b"}" in line:
            yield line, sha256(line)


def _seal(body: bytes) -> bytes:
    return b', "sha256": "' + sha256(body).encode() + b'"}'


_SEAL = len(b', "sha256": ""}') + 64
_PRINTED = re.compile(rb"[ -~]*")
_HEADER = re.compile(rb'\{"schema": \d+, "client": (-?\d{0,15})(,?)')
_END = re.compile(rb'"sha256": "[0-9a-f]{64}".\Z', re.DOTALL)
