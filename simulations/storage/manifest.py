"""The manifest: digests of the files of a run, written with each checkpoint, with which later
commands find damage.

It detects damage and edits by mistake. It does not detect forgery: who can change a file can change
the manifest.

manifest.json             marks of the files that grow, digests of the others; replaced with each
                          checkpoint
manifest.jsonl            one line a round: files that the round left, ledgers that grew; read up to
                          its mark
clients/manifest.json*    the same for files that are not public: a digest tells who guesses a file
                          that he is right

A file that changes between two checkpoints has a digest of its own; the manifest says that it is
there. At the end of a run all files get a digest, and a file that grew has its final length. The
cost of a round does not grow with the number of rounds. Files are written without a sync: after a
crash of the machine a manifest may have to be removed.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedlsg import bounded
from fedlsg.privacy import RUN
from fedlsg.simulations.storage.atomic_files import Record, seal, unseal, write_atomically
from fedlsg.simulations.storage.declared import class_of, find
from fedlsg.simulations.storage.journal import CHUNK, EVENTS, Journal, Marks
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import StepFiles

FORMAT = 1
MANIFEST_FILE = "manifest.json"
OTHERWISE = "restore it from a copy, or remove it (then nothing of the run is checked)"
AT_END = (
    "summary.json",
    "clients.csv",
    "report.html",
    "model.safetensors",
    "config.json",
    "ledger.jsonl",
)
"""Written when a run ends, and again when it ends once more."""
ONCE = ("config.toml", "start.json", "code.json", "clients/training-data.json")
"""Written before the first round."""
STATIC = ("checkpoint/latest.pt", "checkpoint/previous.pt", "checkpoint/sent.json")


class Part:
    """The manifest of public files, or that of the others, in its folder."""

    def __init__(self, folder: Path, *, private: bool) -> None:
        self.path, self.private = folder / MANIFEST_FILE, private
        self.list = Journal(folder / f"{MANIFEST_FILE}l", "")
        self.record: Record = {
            "format": FORMAT,
            "round": -1,
            "closed": False,
            "files": {},
            "grows": {},
            "own": [],
            "final": {},
        }

    def load(self) -> None:
        """What an earlier process wrote; nothing without a file. Raises DamagedError."""
        if self.path.exists():
            self.record = unseal(self.path, otherwise=OTHERWISE)
            self.list.cut(self.record["list"])

    def write(self) -> None:
        """Replace the file."""
        content = seal(self.record | {"list": self.list.mark()})
        write_atomically(self.path, content, durable=False, private=self.private)


def parts_of(run: RunDir) -> tuple[Part, Part]:
    """The manifest of public files, and that of the others."""
    return Part(run.path, private=False), Part(run.data_digest.parent, private=True)


class Manifest:
    """Keeps both parts in step with a run. ``closed``: folders of the run that no epsilon covers
    (``planning.disclosure``). ``one_round``: payloads of the last round alone are claimed to be
    there, for older ones are deleted.
    """

    def __init__(self, run: RunDir, closed: Collection[str], *, one_round: bool = False) -> None:
        self._run, self._closed, self._one_round = run, frozenset(closed), one_round
        self._parts = parts_of(run)
        self._heads: Record = {}
        tails = (run.path / EVENTS, run.log)
        self._tails = {self._name(path): Tail(path) for path in tails}
        self._steps = 0

    def load(self) -> None:
        """Continue the manifest that an earlier process has written."""
        for part in self._parts:
            part.load()

    def checkpoint(
        self, round: int, marks: Marks, heads: Mapping[str, Any], clients: Iterable[int] = ()
    ) -> None:
        """Note what rounds up to this one left. ``marks``: of the tables; ``heads``: the ends of
        the ledgers.

        ``clients``: those that were asked in this round.
        """
        before = self._parts[0].record["round"]
        names, own = list(self._left_in(range(min(before + 1, round), round + 2))), list[str]()
        sent = list[str]()
        for client in clients:
            sent += self._there([self._run.last_payload(client)])
            if os.path.isdir(folder := self._run.own(client)):
                names += self._there([folder / "batches.key"])
                if any(folder.glob("feedback-*.bin")):
                    own.append(self._name(folder / "feedback-*.bin"))
        grown = {
            self._name(self._ledger(name)): list(head)
            for name, head in heads.items()
            if self._heads.get(name) != head
        }
        self._heads = dict(heads)
        grows = tables(marks) | {
            name: mark for name, tail in self._tails.items() if (mark := tail.mark())["bytes"]
        }
        static, once = self._there(STATIC), self._there([*self._run.path.glob("*-run-id"), *ONCE])
        for part in self._parts:
            new = {
                "files": self._digests(names, part),
                "ledgers": {name: grown[name] for name in self._own(grown, part)},
                "own": self._own(own if self._one_round else [*own, *sent], part),
            }
            if any(new.values()):
                part.list.append(json.dumps({"round": round, **new}) + "\n")
            known = part.record["files"]
            part.record |= {
                "round": round,
                "closed": False,
                "final": {},
                "grows": {name: grows[name] for name in self._own(grows, part)},
                "own": self._own([*static, *(sent if self._one_round else ())], part),
                "files": known | self._digests((name for name in once if name not in known), part),
            }
            part.write()

    def close(self, marks: Marks) -> None:
        """The run has ended: digests of all its files but those that the list has. Reads them
        once.
        """
        self.checkpoint(self._parts[0].record["round"], marks, self._heads)
        known = {
            n
            for part in self._parts
            for n, mark in listed_files(part.list.path).items()
            if is_mark(mark)
        }
        known |= {
            name
            for part in self._parts
            for kind in ("files", "grows")
            for name in part.record[kind]
        }
        left = [
            name for name in all_files(self._run.path) if name not in known and is_checked(name)
        ]
        for part in self._parts:
            part.record |= {"closed": True, "final": self._digests(left, part)}
            part.write()

    def _left_in(self, rounds: range) -> Iterator[str]:
        """Files that these rounds left, which change no more."""
        for round in rounds:
            for parent in ("updates", "updates-truth"):
                folder = self._run.path / parent / f"round-{round:06d}"
                if folder.is_dir():
                    yield from sorted(
                        self._name(path)
                        for path in folder.iterdir()
                        if not path.name.startswith(".")
                    )
            yield from self._there([self._run.steps / f"basis-{round:06d}.bin"])
        new = StepFiles(self._run.steps).after(self._steps)
        yield from (self._name(StepFiles(self._run.steps).path(version)) for version in new)
        self._steps = new.stop - 1

    def _own(self, names: Iterable[str], part: Part) -> list[str]:
        """The files that belong into this part. A run that is closed as a whole has a closed
        manifest, too.
        """
        closed = self._closed - {"."}
        return [
            name
            for name in names
            if (
                (declared := find(name)) is not None
                and class_of(name, declared, closed) == "public"
            )
            != part.private
        ]

    def _digests(self, names: Iterable[str], part: Part) -> Record:
        """What these files are now, of those that belong into this part."""
        return {name: digest(self._run.path / name) for name in self._own(names, part)}

    def _ledger(self, name: str) -> Path:
        return self._run.ledgers / f"{RUN}.jsonl" if name == RUN else self._run.ledger(int(name))

    def _there(self, files: Iterable[Path | str]) -> list[str]:
        """The names of the files that exist."""
        return [self._name(path) for one in files if os.path.exists(path := self._run.path / one)]

    def _name(self, path: Path) -> str:
        return path.as_posix().removeprefix(f"{self._run.path.as_posix()}/")


class Tail:
    """Length and digest of a file that other code appends to: each byte is read once. A shorter one
    began anew.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._size, self._sha = path, 0, hashlib.sha256()

    def mark(self) -> Record:
        """Of the file as it is now."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._size:
            self._size, self._sha = 0, hashlib.sha256()
        if size > self._size:
            with self.path.open("rb") as file:
                file.seek(self._size)
                while data := file.read(CHUNK):
                    self._sha.update(data)
                    self._size += len(data)
        return {"bytes": self._size, "sha256": self._sha.hexdigest()}


def tables(marks: Marks) -> Record:
    """A checkpoint's marks of the tables, by their files."""
    return {"rounds.csv": marks["rounds"], "bytes.csv": marks["messages"]}


def digest(path: Path) -> Record:
    """Length and SHA-256 of a file."""
    with path.open("rb") as file:
        sha = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": sha}


def listed_files(path: Path, size: int | None = None) -> Record:
    """What a list says of files, the last line about each: a mark, the end of a ledger, or None for
    "it is there".
    """
    files: Record = {}
    if path.exists():
        for line in bounded.read(path, bounded.LONGEST_TABLE)[:size].splitlines():
            record = bounded.parse_json(line)
            files |= record["files"] | record["ledgers"] | dict.fromkeys(record["own"])
    return files


def is_checked(name: str) -> bool:
    """Whether a file is a run's, and a manifest has its digest at the end."""
    declared = find(name)
    return declared is not None and declared.damage != "none"


def is_mark(said: object) -> bool:
    """Whether a list has a digest of a file."""
    return isinstance(said, dict)


def all_files(folder: Path) -> list[str]:
    """Paths of all files in a folder, sorted."""
    return sorted(
        (Path(place) / name).relative_to(folder).as_posix()
        for place, _, names in os.walk(folder)
        for name in names
    )


def accept(run: RunDir, names: Iterable[str], *, closed: bool = True) -> None:
    """Note the digests that these files have now: a command has written them, or has checked a
    change.

    ``closed``: of a run that has ended; the manifest of another one is its own process's. Without
    one nothing happens.
    """
    for part in parts_of(run):
        if not part.path.exists():
            continue
        record = unseal(part.path, otherwise=OTHERWISE)
        mine = [
            (kind, name) for kind in ("files", "final") for name in names if name in record[kind]
        ]
        if mine and record["closed"] in (True, closed):
            for kind, name in mine:
                record[kind][name] = digest(run.path / name)
            write_atomically(part.path, seal(record), durable=False, private=part.private)


def reopen(run: RunDir, round: int, marks: Marks, *, forgotten: Collection[str] = AT_END) -> None:
    """Go back to a checkpoint, before its files are cut: later rounds, and the end of the run, are
    forgotten.
    """
    for part in parts_of(run):
        if not part.path.exists():
            continue
        part.load()
        lines = (
            part.list.path.read_bytes().splitlines(keepends=True) if part.list.path.exists() else []
        )
        kept = [line for line in lines if json.loads(line)["round"] <= round]
        write_atomically(part.list.path, *kept, durable=False, private=part.private)
        part.list = Journal(part.list.path, "")
        part.list.cut(digest(part.list.path))
        grows = tables(marks)
        part.record |= {
            "round": round,
            "closed": False,
            "final": {},
            "files": {
                name: mark for name, mark in part.record["files"].items() if name not in forgotten
            },
            "grows": {name: grows[name] for name in part.record["grows"] if name in grows},
        }
        part.write()
