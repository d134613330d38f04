"""An entry of a privacy ledger, and the lines of a ledger: JSON in a hash chain.

The first line is a header (schema, client, adjacency), every later line an entry. Each line has
``prev``, the SHA-256 of the valid line before it, so an edit, a removal or a swap is found on
reading, except at the very end. Each line ends with ``sha256``, its own digest, which also finds
damage to the last line. (Files of schema 1 lack it.)

A crash may tear the line that is being appended. It was not synced, so nothing was drawn for it,
and it does not count; the next append removes it. Only the last line may be torn, and only as a
crash does it: what is left is the beginning of a record, without its line feed (``may_be_torn``).
Any other text is damage. A torn line may also be in the middle of a file, if the ``prev`` of the
next line skips it: such files exist. If a disk loses the end of a record that was synced, the file
looks as after a crash.
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
"""Most characters of a run's name."""
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
    """A charge that would exceed a privacy budget; nothing was charged."""


Key = tuple[int, str, int, int]
"""Client, run, round, attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A charge: one attempt of one client in one round.

    client: whose charge it is. One of ``SERVER`` is for every client of the run.
    round, attempt: numbers of the round, and of the attempt in it.
    steps: noisy steps. With ``unit="client"``: one noisy sum of whole updates.
    sample_rate: the probability of a unit to be in a step. With ``unit="client"`` it is 1.0 if the
        server knows which clients are in the sum.
    noise_multiplier: the effective one (noise s.d. over joint sensitivity); 0.0 if the mechanism is
        not private.
    clip_norm: C; infinite without a clip.
    num_examples: examples of the client, or its persons if the ``unit`` is one. In an entry of
        ``SERVER`` the number of clients.
    mechanism: its name.
    reproducible: whether the noise came from a known seed. It counts in a budget as if it were
        secret, and its epsilon is infinite.
    run: the run in a ledger of several runs (that of a deployed client); "" in a simulation, whose
        ledger belongs to one run.
    log_ratio: Lambda of all ``steps`` (``Event``); 0.0 for Gaussian noise, and if the mechanism is
        not private.
    unit: what the run's epsilon protects (``fedlsg.config.units``).
    batches: number of batches of an epoch of shuffled batches (``sampling``); 0 for Poisson
        batches. The cost then follows from the epochs of which the entry has batches.
        ``sample_rate`` is 1.0: read as ``steps`` releases of all examples, the entry costs more,
        never less.
    first_batch: the entry has the batches ``first_batch``, ``first_batch`` + 1, ... of the client
        in this run.
    min_survivors, colluders: m and t of a sum whose clients share the noise (``totals``); 0 if each
        payload has all of it. ``noise_multiplier`` is then that of m - t shares, which protects
        against t of the sum's clients.
    isolation: the level at which the code of users ran (``fedlsg.config.isolation``). It does not
        change the cost: the epsilon rests on it.
    batched: whether a function of the user made rows of several positions in one call. The epsilon
        rests on the user's word that it treats them independently.
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
        """The fields that are not as in ``charge``, as "clip_norm=0.25, not 0.5"; "" if all are.

        ``rounding``: relative difference of floats that does not count.
        """
        differences = []
        for name, other in charge.items():
            value = getattr(self, name)
            if isinstance(value, float) and isinstance(other, float):
                same = math.isclose(value, other, rel_tol=rounding)
            else:
                same = value == other
            if not same:
                differences.append(f"{name}={value!r}, not {other!r}")
        return ", ".join(differences)

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
        """The least value of one of the ``COUNTS``."""
        if name == "num_examples":
            return 1
        by_server = name == "client" and unit_named(self.unit).whole and self.private
        return SERVER if by_server else 0

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
        """How neighbouring data differ: by adding or removing an example, or by making its gradient
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
"""All fields but client, round and attempt: sequences of entries of the same kinds have the same
cost, for every reader.
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
"""Fields that a line leaves out at these values, so that lines without them keep their bytes."""


def encode_entry(entry: Entry) -> dict[str, Any]:
    """An entry as JSON values, without ``OPTIONAL`` fields at their values; null is an infinite
    clip norm.
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
    """Entries as JSON values, by field: a list with a value for each, or one value for all.

    "client" is always a list, which says how many there are.
    """
    records = [encode_entry(entry) for entry in entries]
    columns: dict[str, Any] = {}
    for name in FIELDS:
        if any(name in record for record in records):
            column = [record.get(name, OPTIONAL.get(name)) for record in records]
            is_same = name != "client" and len(set(column)) == 1
            columns[name] = column[0] if is_same else column
    return columns


def decode_entries(columns: dict[str, Any]) -> list[Entry]:
    """The entries of ``encode_entries``. Raises TypeError, KeyError or ValueError for anything
    else.
    """
    count = len(columns["client"])
    lists = [
        column if isinstance(column, list) else [column] * count for column in columns.values()
    ]
    rows = zip(*lists, strict=True)
    return [decode_entry(dict(zip(columns, row, strict=True))) for row in rows]


SCHEMA = 2
"""The schema of files that are begun now."""
UNSEALED = 1
"""The schema whose lines have no digest of their own."""
GENESIS = "0" * 64
"""The hash before the first line."""


def sha256(line: bytes) -> str:
    """The hash of a line, as hexadecimal digits."""
    return hashlib.sha256(line).hexdigest()


def check_line(line: bytes, record: dict[str, Any], previous: str, *, sealed: bool = True) -> None:
    """Check a line's ``prev`` and, if ``sealed``, its own digest, and remove both from its record.

    Raises LedgerError if one is wrong, KeyError without a ``prev``.
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
    """The beginning of every line of an entry of ``client``."""
    return f'{{"client": {client}, "round": '.encode()


def may_be_torn(line: bytes, beginnings: Iterable[bytes], previous: str) -> bool:
    """Whether a line may be the first part of a record, which a crash left.

    ``beginnings``: the ways in which records begin. ``previous``: the record's ``prev``.
    """
    begins = any(line.startswith(beginning[: len(line)]) for beginning in beginnings)
    _, _, link = line.partition(b'"prev": "')
    return begins and bool(_PRINTED.fullmatch(line)) and previous.encode().startswith(link[:64])


def client_of_torn_header(line: bytes) -> int | None:
    """The client of a header that a crash tore; -1 if it is torn before the client's last digit.

    None for a line that is not the first part of a header.
    """
    match = _HEADER.match(line)
    digits = match[1] if match else b""
    # a header that ends before the client, or at its sign, can be that of client 0, or -1
    client = int({b"": b"0", b"-": b"-1"}.get(digits, digits))
    if not encode_header(client).startswith(line):
        return None
    return client if match and match[2] else -1


def has_its_end(line: bytes) -> bool:
    """Whether a line ends with a digest, whatever its last byte is: a torn line is shorter."""
    return bool(_END.search(line))


def encode_line(record: Mapping[str, Any], previous: str) -> bytes:
    """The line of a record, without its line feed: with ``prev`` = ``previous``, and its own
    digest.
    """
    body = json.dumps({**record, "prev": previous}, allow_nan=False).encode()
    return body[:-1] + _seal(body)


def lines_with_hashes(content: bytes) -> Iterator[tuple[bytes, str]]:
    """The lines with a "}", which a torn line lacks, without their line feed; and their hashes."""
    for line in content.split(b"\n"):
        if b"}" in line:
            yield line, sha256(line)


def _seal(body: bytes) -> bytes:
    """The end of a line, with the digest of the record without it."""
    return b', "sha256": "' + sha256(body).encode() + b'"}'


_SEAL = len(b', "sha256": ""}') + 64
_PRINTED = re.compile(rb"[ -~]*")
_HEADER = re.compile(rb'\{"schema": \d+, "client": (-?\d{0,15})(,?)')
_END = re.compile(rb'"sha256": "[0-9a-f]{64}".\Z', re.DOTALL)
