"""The run directory: paths of its files, and reading and writing of most of them.

    config.toml       resolved settings
    start.json        what the user gave and what was spent before, for the page
    rounds.csv        one row a round
    bytes.csv         one line a message
    clients.csv       SECRET a row for each client, with its name
    ledger/           run.jsonl: all charges, the authority; or one ledger a client, where clients
                      keep their own
    ledger.jsonl      merged copy of the ledgers
    checkpoint/       latest.pt, previous.pt; outbox/: last payloads; sent.json: bytes sent down in
                      this round
    summary.json      results, written last
    model.safetensors, config.json
                      the evaluated model, and what it is (``updates``)
    updates/          payloads and frames, see ``updates``
    updates-truth/    SECRET batches, for evaluating attacks
    clients/          SECRET digest of the training rows; memories of error feedback, if a method
                      without privacy keeps them, in a folder for each client
    downlink/         updates as they were sent (sparse)
    replicas/         the public state as a deployed client last had it (in the client's own folder)
    report.html       plots and settings, written at the end
    run.log           SECRET what Flower, Ray and we log
    events.out.tfevents.fedlsg
                      numbers for TensorBoard
    .lock             the process that uses the directory

``declared`` says for each file who may read it. ``manifest`` and ``examined`` find changes since
the run. ``fedlsg.simulations.server.restore.READ`` lists the files that ``fedlsg resume`` reads.
run.log is SECRET because the traceback of a client that failed may quote its data.
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from torch import Tensor

from fedlsg import bounded
from fedlsg.owner_only import make_folder, make_parents
from fedlsg.privacy import SERVER, RunLedger, ledger_path, merge
from fedlsg.simulations.settings.settings import Settings, as_config, from_file, values_of
from fedlsg.simulations.storage.atomic_files import (
    DamagedError,
    Record,
    check_inside,
    load_checkpoint,
    save_array,
    save_checkpoint,
    seal,
    unseal,
    write_atomically,
)
from fedlsg.simulations.storage.run_format import VERSION, readable
from fedlsg.simulations.storage.updates import MAX_REPLAYED_STEPS, StepFiles, round_folder
from fedlsg.user_code.digest import version

LONGEST_HEADER = 1 << 20
"""Characters of a first line of rounds.csv that are read."""


def _finite(value: Any) -> Any:
    """The value with "inf" and "nan" as strings, also in mappings: any JSON reader accepts it."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _load(checkpoint: Path) -> Record:
    """The state in a checkpoint. Raises as ``load_checkpoint`` and ``readable``."""
    return readable(load_checkpoint(checkpoint), checkpoint)


class _Path(str):
    """A field of ``RunDir``: the path of this file or folder in the run directory."""

    def __get__(self, run: "RunDir", owner: type) -> Path:
        return run.path / str(self)


@dataclass(frozen=True)
class RunDir:
    """Paths and writers of one run directory."""

    path: Path

    config = _Path("config.toml")
    start = _Path("start.json")  # see ``start_record``
    rounds = _Path("rounds.csv")
    messages = _Path("bytes.csv")
    summary = _Path("summary.json")
    clients = _Path("clients.csv")  # the owner's: it has names that the data give clients
    log = _Path("run.log")
    ledgers = _Path("ledger")
    checkpoint = _Path("checkpoint/latest.pt")
    previous = _Path("checkpoint/previous.pt")  # for a run whose last one is damaged
    sent = _Path("checkpoint/sent.json")  # what the server has sent down in the current round
    # SECRET: one could test guesses of a row with it
    data_digest = _Path("clients/training-data.json")
    steps = _Path("downlink")  # server updates as they were sent down

    @classmethod
    def open(cls, path: str) -> "RunDir":
        """An existing folder, checked by ``check_inside``. Raises ValueError for anything else."""
        folder = Path(path).expanduser().resolve()
        if not folder.is_dir():
            why = "it is a file" if folder.exists() else "it does not exist"
            raise ValueError(f"{path} is no run directory: {why}")
        check_inside(folder)
        return cls(folder)

    def protect(self, closed: Iterable[str]) -> None:
        """Make these folders, for their owner only; and close folders of secrets that exist.

        ``closed``: folders that no epsilon covers, see ``planning.disclosure``.
        """
        for folder in closed:
            make_parents((self.path / folder).parent)
            make_folder(self.path / folder)
        for secret in (self.data_digest.parent, self.path / "updates-truth"):
            if secret.exists():
                make_folder(secret)

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return self.checkpoint.exists() or self.previous.exists()

    def ledger(self, client: int) -> Path:
        """The ledger of one client, if clients keep their own (header: ``ledger/``)."""
        return ledger_path(self.ledgers, client)

    def last_payload(self, client: int) -> Path:
        """The file of the client's last payload."""
        return self.path / f"checkpoint/outbox/client-{client:06d}.bin"

    def own(self, client: int) -> Path:
        """The folder for what a client never sends."""
        return self.path / f"clients/client-{client:06d}"

    def replica(self, client: int) -> Path:
        """The last public state of a client on a machine of its own."""
        return self.path / "replicas" / f"client-{client:06d}.bin"

    def step(self, version: int) -> bytes:
        """The step of a sparse downlink that leads to a version. Raises OSError, DamagedError."""
        return StepFiles(self.steps).load(version)

    def own_basis(self, client: int) -> Path:
        """The carriers of a probe that a client on a machine of its own holds."""
        return self.path / "replicas" / f"basis-{client:06d}.bin"

    def basis(self, round: int) -> bytes:
        """The carriers that the server probed in a round. Raises OSError, DamagedError."""
        return StepFiles(self.steps).load_basis(round)

    def steps_after(self, version: int) -> list[tuple[int, bytes]]:
        """The steps that a replica at ``version`` lacks, each with its version.

        If there are more than ``MAX_REPLAYED_STEPS``: the checkpoint, as version -1, and the last
        steps. Damaged steps are left out: a replica that still lacks one is sent the whole model.
        """
        files = StepFiles(self.steps)
        versions = files.after(version)
        steps = []
        if len(versions) > MAX_REPLAYED_STEPS and self.checkpoint.exists():
            steps.append((-1, self.checkpoint.read_bytes()))
            versions = versions[-MAX_REPLAYED_STEPS:]
        for number in versions:
            with suppress(OSError, ValueError):  # it is damaged
                steps.append((number, files.load(number)))
        return steps

    def basis_after(self, round: int) -> list[tuple[int, bytes]]:
        """The carriers that were probed last, with their round; none if that is ``round``."""
        newest = StepFiles(self.steps).newest_basis
        with suppress(OSError, ValueError):  # there are no carriers, or the file is damaged
            return [(newest, self.basis(newest))] if newest != round else []
        return []

    @property
    def charges(self) -> RunLedger:
        """All ledgers of the run. Raises LedgerError if one is damaged."""
        return RunLedger(self.ledgers)

    def merge_ledgers(self, names: Sequence[str] = ()) -> None:
        """Write ledger.jsonl, the entries of all clients; ``names``: of the clients, to show."""
        ledger = self.charges
        clients = [*ledger.clients(), SERVER]
        merge(
            [entry for client in clients for entry in ledger.of(client).entries],
            self.path / "ledger.jsonl",
            names,
        )

    def write_data_digest(self, digest: str, contents: Mapping[str, str]) -> None:
        """Write the digest of all training rows, and ``contents_of`` the run, for the owner only.

        They are secret, as the rows are.
        """
        record = seal({"rows": digest, "contents": dict(contents)})
        write_atomically(self.data_digest, record, private=True)

    def read_contents(self) -> dict[str, str]:
        """``contents_of`` the run; empty if the run does not have them, or the reader may not read
        them.
        """
        with suppress(OSError, ValueError):
            return dict(unseal(self.data_digest, otherwise="").get("contents", {}))
        return {}

    def read_data_digest(self) -> str:
        """The digest of all training rows. Raises ValueError if it is missing or damaged."""
        otherwise = (
            "the data cannot be compared with those before; restore it from a copy, or start a new "
            "run"
        )
        try:
            return str(unseal(self.data_digest, otherwise=otherwise)["rows"])
        except FileNotFoundError:
            raise ValueError(f"{self.data_digest} is missing: {otherwise}") from None

    def write_sent(self, note: Mapping[str, Any]) -> None:
        """Note what the current round sends down. Not synced: if the note is lost, an interrupted
        round is not counted.
        """
        write_atomically(self.sent, seal(note), durable=False)

    def read_sent(self) -> Record:
        """The note of ``write_sent``; attempt 0 without one. Raises DamagedError."""
        try:
            return unseal(
                self.sent,
                otherwise="remove it to continue; what an interrupted round sent down is then not "
                "counted",
            )
        except FileNotFoundError:
            return {"attempt": 0}

    def save_update(self, round: int, client: int, payload: bytes) -> None:
        """Record a payload as it was sent."""
        write_atomically(round_folder(self.path, round) / f"client-{client:06d}.bin", payload)

    def save_sum(self, round: int, total: Tensor) -> None:
        """Record the sum of a round, as the server saw it; flat float64."""
        self._save(round, "sum", total)

    def save_weights(self, round: int, weights: Tensor) -> None:
        """Record the public weights at the start of a round, flat float32."""
        self._save(round, "weights", weights)

    def save_kept(self, round: int, positions: Tensor) -> None:
        """Record the kept positions of a round, if they do not follow from its weights."""
        self._save(round, "kept", positions)

    def _save(self, round: int, name: str, values: Tensor) -> None:
        save_array(round_folder(self.path, round) / f"{name}.npy", values.cpu().numpy())

    def save_truth(self, round: int, client: int, rows: Tensor) -> None:
        """Record which rows of the training split are in a client's batches: SECRET."""
        folder = self.path / "updates-truth"
        make_folder(folder)
        save_array(
            folder / f"round-{round:06d}" / f"client-{client:06d}.npy",
            rows.cpu().numpy(),
            private=True,
        )

    def write_config(self, settings: Settings) -> None:
        """Write the resolved settings."""
        self.write_raw_config(as_config(settings))

    def write_raw_config(self, config: Mapping[str, Any]) -> None:
        """Write settings by their names with dashes."""
        write_atomically(self.config, tomli_w.dumps(config).encode())

    def read_config(self) -> Settings:
        """The resolved settings; code that they name is not run.

        Raises ValueError for a directory that holds none, or an unknown setting.
        """
        config = self.read_raw_config()
        try:
            return from_file(config)
        except ValueError as error:
            raise ValueError(
                f"{self.config}: {error}{self._of_other_version(str(error))}"
            ) from None

    def _of_other_version(self, error: str) -> str:
        """Advice for a setting of the run that this fedlsg does not know; "" for other errors."""
        with suppress(ValueError, LookupError, AttributeError):
            planned = self.resume_point()[0]["plan"]
            if any(error.startswith(f"unknown setting {name!r}") for name in planned["settings"]):
                by = planned.get(VERSION, "0.1")  # formats 1 to 3 do not have it
                return (
                    f": fedlsg {by} began the run with it, and fedlsg {version()} has no such "
                    f"setting. Install fedlsg {by} to go on with the run (fedlsg resume), or begin "
                    f"another one with its weights and its ledger: fedlsg export {self.path} "
                    f"--unfinished, then start_from={self.path}. What it has spent is in "
                    f"{self.ledgers}"
                )
        return ""

    def read_raw_config(self) -> Record:
        """The settings in config.toml, by names with dashes.

        Raises ValueError if the file is missing or damaged.
        """
        try:
            return bounded.read_toml(self.config)
        except FileNotFoundError:
            raise ValueError(f"{self.path} is no run directory: it holds no config.toml") from None
        except ValueError as error:
            raise ValueError(f"{self.config} is damaged: {error}") from None

    def read_values(self) -> Record:
        """The resolved settings by field name, for reports. Raises as ``read_config``."""
        return values_of(self.read_config())

    def write_summary(self, summary: Record) -> None:
        """Write summary.json; numbers that are not finite become the strings "inf" and "nan"."""
        write_atomically(self.summary, seal(_finite(summary), indent=2))

    def read_summary(self) -> Record:
        """What ``write_summary`` wrote. Raises FileNotFoundError; DamagedError."""
        return unseal(self.summary, otherwise="restore it from a copy")

    def save_checkpoint(self, state: Record) -> None:
        """Replace the checkpoint, atomically and durably; keep the one before."""
        save_checkpoint(self.checkpoint, self.previous, state)

    def load_checkpoint(self) -> Record:
        """The last checkpoint. Raises ValueError if there is none or it is damaged."""
        try:
            return _load(self.checkpoint)
        except FileNotFoundError:
            raise ValueError(
                f"{self.path} holds no checkpoint: it cannot be continued, start a new run"
            ) from None

    def resume_point(self) -> tuple[Record, str | None]:
        """The checkpoint to continue from, and a sentence that explains it if it is not the last.

        Raises ValueError if both checkpoints are missing or damaged.
        """
        try:
            return _load(self.checkpoint), None
        except FileNotFoundError:
            why = f"{self.checkpoint} is missing"
        except DamagedError:
            why = f"{self.checkpoint} is damaged"
        try:
            before = _load(self.previous)
        except (FileNotFoundError, DamagedError):
            raise ValueError(
                f"{why}, and there is no whole {self.previous.name} either: restore one of them "
                "from a copy, or start a new run"
            ) from None
        return (
            before,
            f"{why}: continuing from {self.previous.name}, after round {before['server']['round']}",
        )

    def read_rounds(self) -> list[dict[str, str]]:
        """Complete rows of rounds.csv as text, without a last line that a crash left incomplete.

        Raises ValueError for another kind of file.
        """
        if not self.rounds.exists():
            return []
        try:
            text = bounded.read_text(self.rounds, bounded.LONGEST_TABLE)
            rows = list(csv.DictReader(text.rpartition("\n")[0].splitlines()))
        except (ValueError, csv.Error) as error:
            raise ValueError(
                f"{self.rounds} is damaged ({error}): restore it from a copy, or start a new run"
            ) from None
        if any(not (row.get("round") or "").isdigit() for row in rows):
            raise ValueError(
                f"{self.rounds} is damaged: restore it from a copy, or start a new run"
            )
        return rows

    def columns_of_rounds(self, new: Sequence[str]) -> Sequence[str]:
        """The columns of rounds.csv; ``new`` if it has no header yet."""
        try:
            with self.rounds.open(encoding="utf-8") as file:
                header = file.readline(LONGEST_HEADER)
        except OSError:
            return new
        return header.rstrip().split(",") if header.startswith("round,") else new

    def last_round(self) -> int:
        """The last finished round, 0 for a new run."""
        return int(self.resume_point()[0]["server"]["round"]) if self.has_checkpoint else 0
