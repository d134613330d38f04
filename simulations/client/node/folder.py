"""A deployed client's folder (ledger-dir): its one ledger, its secret and a record of its data.

ledger.jsonl   the privacy ledger, never restarted: it continues over runs and servers
secret.key     32 random bytes that never leave this folder
data.json      a hash of the training rows under that secret, their number, and the end of the
               ledger
runs/<run>/    stored payloads and the replica of one run
cache/         decoded or tokenized rows of the client's own .parquet files: as private as the rows

Only its owner can read it. One lock, on the folder, covers every check and the charge after it.
"""

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlsg import bounded
from fedlsg.locks import LockedError, locked
from fedlsg.owner_only import FOLDER_MODE, make_file, make_parents
from fedlsg.privacy import GENESIS, Entry, Ledger, LedgerError, head_of, lines_since, load
from fedlsg.privacy.ledger_copy import LARGEST_BYTES
from fedlsg.privacy.limits import Limits
from fedlsg.simulations.client.node.node_config import NodeConfig
from fedlsg.simulations.client.node.refusals import OverBudgetError, TermsError
from fedlsg.simulations.storage.atomic_files import write_atomically
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.strategies.protocol.proofs import News

SECRET_BYTES = 32
"""Size of secret.key."""
ENTRY_BYTES = 1024
"""Size of a line of a ledger, at most."""
RUN_NAME = re.compile(r"(?!\.)[\w.-]{1,64}", re.ASCII)
"""Names of runs that are safe as names of folders."""
DATA_FIELDS = {
    "client": int,
    "form": str,
    "num_examples": int,
    "digest": str,
    "entries": int,
    "head": str,
}
"""Types of the entries of data.json; the last two are the length and end of the ledger."""

Digest = Callable[[bytes], str]
"""A digest of the training rows under a key."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A limit on what the entries of a ledger spend together.

    epsilon, delta: the limit.
    run: only entries of this run count; None for all runs.
    """

    epsilon: float
    delta: float
    run: str | None = None


@dataclass(frozen=True)
class NodeFolder:
    """The folder of a client's terms. Every method may raise TermsError or LedgerError."""

    terms: NodeConfig

    @classmethod
    def open(cls, terms: NodeConfig) -> "NodeFolder":
        """Make the folder if needed, and check its ledger: this client's, undamaged, writable."""
        folder = cls(terms)
        _make_private(terms.ledger_dir)
        try:
            make_file(folder.path)
        except OSError as error:
            raise TermsError(
                f"cannot write {folder.path} (ledger-dir): {error.strerror or error}"
            ) from None
        with folder._locked():
            folder._checked_ledger()
        return folder

    @property
    def path(self) -> Path:
        """The file of the ledger."""
        return self.terms.ledger_dir / "ledger.jsonl"

    @property
    def ledger(self) -> Ledger:
        """The one ledger. Raises TermsError if it has another owner, LedgerError for damage."""
        owner = load(self.path, None)[0]
        if owner not in (-1, self.terms.partition):
            raise TermsError(
                f"{self.path} is the ledger of partition-id={owner}, and this client's node config "
                f"says partition-id={self.terms.partition}: keep the number, because one ledger "
                "serves all runs"
            )
        return Ledger(self.path, client=self.terms.partition)

    def run(self, name: str) -> RunDir:
        """The folder for one run's payloads and replica."""
        if not RUN_NAME.fullmatch(name):
            raise TermsError(
                f"the server names its run {name[:80]!r}: expected letters, digits, '.', '_' and "
                "'-'"
            )
        return RunDir(self.terms.ledger_dir / "runs" / name)

    def news(self, head: str = GENESIS) -> News:
        """The ledger's lines after the last one that the server has."""
        with self._locked():
            self._checked_ledger()
            client = self.terms.partition
            return News(lines=lines_since(self.path, client, head), head=head_of(self.path, client))

    def admit(self, form: str, num_examples: int, digest: Digest) -> None:
        """Check that the training rows are those of this ledger; record them before a charge.

        ``form``: a public digest of how the rows are read. It is compared first. If it differs, the
        rows are not compared: a reply about them must not depend on how a server wants to read
        them. Raises TermsError for other rows, unless the terms accept them: the ledger then
        continues at the spent epsilon.
        """
        with self._locked():
            begun = bool(self._checked_ledger().entries)
            accept = self.terms.accept_changed_data
            record = self._record(required=begun and not accept)
            must_match = begun and not accept
            key = self._secret(required=must_match or (record is not None and not accept))
            if must_match and record is not None and record["form"] != form:
                raise TermsError(_other_form(self.terms.ledger_dir))
            rows = {"form": form, "num_examples": num_examples, "digest": digest(key)}
            if must_match and record is not None:
                _check_rows(record, rows, self.terms.ledger_dir)
            elif record is None or any(record[name] != value for name, value in rows.items()):
                self._save_record(rows)

    def admitted(self) -> str:
        """The digest of the rows that were admitted last, in their order. It is SECRET."""
        record = self._record(required=True)
        assert record is not None
        return str(record["digest"])

    def charge(self, entry: Entry, budgets: tuple[Budget, ...]) -> None:
        """Charge an entry for admitted rows, if every budget allows it.

        Check and charge are under one lock, so that nothing is spent twice. Nothing is charged if
        it raises: TermsError for less noise than the terms allow, OverBudgetError for a budget that
        would be passed, LedgerError for a ledger that would become too long for any server.
        """
        with self._locked():
            ledger = self._checked_ledger()
            if self.path.exists() and self.path.stat().st_size + ENTRY_BYTES > LARGEST_BYTES:
                raise LedgerError(
                    f"{self.path} is full: with one more entry it would pass {LARGEST_BYTES:,} "
                    "bytes, and no server accepts it; nothing was charged for this round"
                )
            self._record(required=True)  # raises TermsError
            least = Limits(budgets=(), least_noise_multiplier=self.terms.noise_multiplier_min)
            if (refused := least.refusal(entry, ledger.would_exceed)) is not None:
                raise TermsError(refused)
            for budget in budgets:
                if ledger.would_exceed(entry, budget.epsilon, budget.delta, run=budget.run):
                    raise OverBudgetError(_over_budget(entry, budget))
            ledger.charge(entry)
            self._save_record({})

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from reading or writing the folder in the block (POSIX)."""
        try:
            with locked(self.terms.ledger_dir):
                yield
        except LockedError as error:
            raise TermsError(str(error)) from None

    def _checked_ledger(self) -> Ledger:
        """The ledger, if it still begins with all charged entries.

        data.json has its length and end: its chain cannot show that last lines are lost.
        """
        ledger = self.ledger
        record = self._record(required=False)
        if record is None:
            return ledger
        heads = (GENESIS, *load(self.path, self.terms.partition)[1].heads[1:])
        if len(heads) <= record["entries"] or heads[record["entries"]] != record["head"]:
            raise LedgerError(
                f"{self.path}: {len(heads) - 1} entries, not those that were charged "
                f"({record['entries']} at least): restore the file from a copy; a server that this "
                "client trained for holds one"
            )
        return ledger

    def _record(self, *, required: bool) -> dict[str, Any] | None:
        """The content of data.json; None if it does not exist and is not ``required``."""
        path = self.terms.ledger_dir / "data.json"
        try:
            record = bounded.read_json(path)
            if (
                not isinstance(record, dict)
                or {name: type(value) for name, value in record.items()} != DATA_FIELDS
            ):
                raise ValueError
            if record["client"] != self.terms.partition or record["entries"] < 0:
                raise ValueError
        except FileNotFoundError:
            if required:
                raise TermsError(_missing(path)) from None
            return None
        except (ValueError, OSError):
            raise TermsError(
                f"{path} is damaged, or another partition-id's: restore it from a copy, or remove "
                "it and set accept-changed-data=true to continue at the spent epsilon"
            ) from None
        return record

    def _save_record(self, changes: dict[str, Any]) -> None:
        """Write data.json, with changes and the present end of the ledger."""
        record = self._record(required=False) or {}
        entries, head = self.ledger.snapshot()
        record |= {
            "client": self.terms.partition,
            "entries": entries,
            "head": head if entries else GENESIS,
            **changes,
        }
        _write(self.terms.ledger_dir / "data.json", (json.dumps(record, indent=1) + "\n").encode())

    def _secret(self, *, required: bool) -> bytes:
        """The key of this client's digest of rows; made if it is missing and not ``required``."""
        path = self.terms.ledger_dir / "secret.key"
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            if required:
                raise TermsError(_missing(path)) from None
            key = secrets.token_bytes(SECRET_BYTES)
            _write(path, key)
        except OSError as error:
            raise TermsError(f"cannot read {path}: {error.strerror or error}") from None
        if len(key) != SECRET_BYTES:
            raise TermsError(
                f"{path} is damaged: expected {SECRET_BYTES} bytes; restore it from a copy"
            )
        return key


def _make_private(folder: Path) -> None:
    """Make a folder that only its owner can read.

    Raises TermsError if it cannot be made, or exists and is open to others.
    """
    try:
        if not folder.exists():
            make_parents(folder, private=True)
        elif folder.is_dir() and not any(folder.iterdir()):
            folder.chmod(FOLDER_MODE)
        if not folder.is_dir():
            raise TermsError(
                f"ledger-dir={folder} is not a folder: name a folder of this client's own"
            )
        mode = folder.stat().st_mode & 0o777
    except OSError as error:
        raise TermsError(f"cannot use ledger-dir={folder}: {error.strerror or error}") from None
    if os.name == "posix" and mode & 0o077:
        raise TermsError(
            f"ledger-dir={folder} is open to other users (mode {mode:o}): chmod 700 {folder}"
        )


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content, private=True)
    except OSError as error:
        raise TermsError(f"cannot write {path}: {error.strerror or error}") from None


def _check_rows(record: dict[str, Any], rows: dict[str, Any], folder: Path) -> None:
    """Raise TermsError if the rows are not those of the record."""
    if record["num_examples"] != rows["num_examples"]:
        change = f"another number of training rows than the {record['num_examples']} that"
    elif record["digest"] != rows["digest"]:
        change = "other training rows than those that"
    else:
        return
    raise TermsError(
        f"this client has {change} the ledger in {folder} is for: restore them, take another "
        "ledger-dir for other people's data, or set accept-changed-data=true to continue at "
        "the spent epsilon"
    )


def _other_form(folder: Path) -> str:
    return (
        "the run reads this client's rows in another form (workload, columns or, for texts, model "
        f"and max_length) than that of the ledger in {folder}: take that form, or set "
        "accept-changed-data=true to continue at the spent epsilon"
    )


def _missing(path: Path) -> str:
    return (
        f"{path} is missing, so the data cannot be compared with those that were trained on: "
        "restore it from a copy, or set accept-changed-data=true to continue at the spent epsilon"
    )


def _over_budget(entry: Entry, budget: Budget) -> str:
    if budget.run is None:
        return (
            f"round {entry.round} would pass epsilon-max={budget.epsilon:g} at "
            f"delta-max={budget.delta:g}, this client's privacy budget over all runs"
        )
    return (
        f"round {entry.round} would pass the privacy budget epsilon={budget.epsilon:g} of this run"
    )
