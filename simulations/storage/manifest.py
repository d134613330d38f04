"""The manifest: digests of the files of a run, with which later commands find damage.

It is written with each checkpoint. It detects damage and edits by mistake. It does not detect
forgery: who can change a file can change the manifest.

manifest.json             marks of the files that grow, digests of the others; replaced with each
                          checkpoint
manifest.jsonl            one line a round: files that the round left, ledgers that grew; read up to
                          its mark
clients/manifest.json*    the same for files that are not public: a digest would confirm a guess of
                          a file's content

A file that changes between two checkpoints has a digest of its own; the manifest says only that it
exists. At the end of a run all files get a digest, and a file that grew has its final length. The
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
from fedlsg.simulations.storage.journal import CHUNK, Journal, Marks
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.tensorboard_events import EVENTS
from fedlsg.simulations.storage.updates import StepFiles

FORMAT = 1
"""Format of manifest.json."""
MANIFEST_FILE = "manifest.json"
OTHERWISE = "restore it from a copy, or remove it (then nothing of the run is checked)"
"""The advice for a damaged manifest."""
AT_END = (
    "summary.json",
    "clients.csv",
    "report.html",
    "model.safetensors",
    "config.json",
    "ledger.jsonl",
)
"""Files that are written when a run ends, also a resumed one."""
ONCE = ("config.toml", "start.json", "code.json", "clients/training-data.json")
"""Files that are written before the first round."""
WITH_OWN_DIGEST = ("checkpoint/latest.pt", "checkpoint/previous.pt", "checkpoint/sent.json")
"""Files that each round replaces."""


class Part:
    """One of the two manifests: that of public files, or that of the others.

    path: manifest.json.
    private: whether it is that of the files that are not public.
    list: manifest.jsonl.
    record: the content of manifest.json. "files" and "final" are digests, "grows" marks, by name;
        "own" lists files with a digest of their own; "closed" says whether the run has ended.
    """

    def __init__(self, folder: Path, *, private: bool) -> None:
        self.path = folder / MANIFEST_FILE
        self.private = private
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
        """Continue what an earlier process wrote, if there is a file. Raises DamagedError."""
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
    """Both parts, brought up to date with a run at each checkpoint."""

    def __init__(self, run: RunDir, closed: Collection[str], *, one_round: bool = False) -> None:
        """The manifest of a run.

        closed: folders of the run that no epsilon covers (``planning.disclosure``).
        one_round: whether only the payloads of the last round are kept.
        """
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
        """Note the files that rounds up to this one left.

        marks: of the tables.
        heads: the ends of the ledgers, by client.
        clients: those that were asked in this round.
        """
        before = self._parts[0].record["round"]
        # the weights of the next round are on disk already (``Recorder.record_public``)
        names = list(self._left_in(range(min(before + 1, round), round + 2)))
        own = list[str]()
        sent = list[str]()
        for client in clients:
            sent += self._existing([self._run.last_payload(client)])
            if os.path.isdir(folder := self._run.own(client)):
                names += self._existing([folder / "batches.key"])
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
        static = self._existing(WITH_OWN_DIGEST)
        once = self._existing([*self._run.path.glob("*-run-id"), *ONCE])
        for part in self._parts:
            new = {
                "files": self._digests(names, part),
                "ledgers": {name: grown[name] for name in self._select(grown, part)},
                "own": self._select(own if self._one_round else [*own, *sent], part),
            }
            if any(new.values()):
                part.list.append(json.dumps({"round": round, **new}) + "\n")
            known = part.record["files"]
            part.record |= {
                "round": round,
                "closed": False,
                "final": {},
                "grows": {name: grows[name] for name in self._select(grows, part)},
                "own": self._select([*static, *(sent if self._one_round else ())], part),
                "files": known | self._digests((name for name in once if name not in known), part),
            }
            part.write()

    def close(self, marks: Marks) -> None:
        """Note that the run has ended, with the digests of all files that have none so far."""
        self.checkpoint(self._parts[0].record["round"], marks, self._heads)
        known = set[str]()
        for part in self._parts:
            listed = listed_files(part.list.path)
            known.update(name for name, claim in listed.items() if is_mark(claim))
            known.update(part.record["files"], part.record["grows"])
        others = [
            name for name in all_files(self._run.path) if name not in known and is_checked(name)
        ]
        for part in self._parts:
            part.record |= {"closed": True, "final": self._digests(others, part)}
            part.write()

    def _left_in(self, rounds: range) -> Iterator[str]:
        """Files of these rounds that do not change any more."""
        for round in rounds:
            for parent in ("updates", "updates-truth"):
                folder = self._run.path / parent / f"round-{round:06d}"
                if folder.is_dir():
                    yield from sorted(
                        self._name(path)
                        for path in folder.iterdir()
                        if not path.name.startswith(".")
                    )
            yield from self._existing([self._run.steps / f"basis-{round:06d}.bin"])
        steps = StepFiles(self._run.steps)
        new = steps.after(self._steps)
        yield from (self._name(steps.path(version)) for version in new)
        self._steps = new.stop - 1

    def _select(self, names: Iterable[str], part: Part) -> list[str]:
        """The files that belong to this part."""
        return [name for name in names if self._is_public(name) != part.private]

    def _is_public(self, name: str) -> bool:
        """Whether a file is public in its run. If all of the run is closed, the manifest is, too,
        and may list it as if it were public.
        """
        declared = find(name)
        return declared is not None and class_of(name, declared, self._closed - {"."}) == "public"

    def _digests(self, names: Iterable[str], part: Part) -> Record:
        """The digests that those of the files have now that belong to this part."""
        return {name: digest(self._run.path / name) for name in self._select(names, part)}

    def _ledger(self, name: str) -> Path:
        return self._run.ledgers / f"{RUN}.jsonl" if name == RUN else self._run.ledger(int(name))

    def _existing(self, files: Iterable[Path | str]) -> list[str]:
        """The names of the files that exist."""
        paths = [self._run.path / file for file in files]
        return [self._name(path) for path in paths if os.path.exists(path)]

    def _name(self, path: Path) -> str:
        """The path in the run directory, as a text."""
        return path.as_posix().removeprefix(f"{self._run.path.as_posix()}/")


class Tail:
    """Length and digest of a file that other code appends to; each byte is read once.

    A file that became shorter is read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._size, self._sha = path, 0, hashlib.sha256()

    def mark(self) -> Record:
        """The mark of the file as it is now."""
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
    """The last claim of a list about each file, from its first ``size`` bytes.

    A claim is a mark, the end of a ledger, or None for a file with a digest of its own.
    """
    files: Record = {}
    if path.exists():
        for line in bounded.read(path, bounded.LONGEST_TABLE)[:size].splitlines():
            record = bounded.parse_json(line)
            files |= record["files"] | record["ledgers"] | dict.fromkeys(record["own"])
    return files


def is_checked(name: str) -> bool:
    """Whether a file belongs to a run and the manifest has its digest at the end."""
    declared = find(name)
    return declared is not None and declared.damage != "none"


def is_mark(claim: object) -> bool:
    """Whether a claim of a list is a mark, with length and digest."""
    return isinstance(claim, dict)


def all_files(folder: Path) -> list[str]:
    """Paths of all files in a folder, sorted."""
    return sorted(
        (Path(place) / name).relative_to(folder).as_posix()
        for place, _, names in os.walk(folder)
        for name in names
    )


def accept(run: RunDir, names: Iterable[str], *, closed: bool = True) -> None:
    """Note the digests that these files have now, after a command wrote them or checked a change.

    ``closed``: only in a run that has ended; the process of another run keeps its own manifest.
    Nothing happens without a manifest.
    """
    for part in parts_of(run):
        if not part.path.exists():
            continue
        record = unseal(part.path, otherwise=OTHERWISE)
        entries = [
            (kind, name) for kind in ("files", "final") for name in names if name in record[kind]
        ]
        if entries and (record["closed"] or not closed):
            for kind, name in entries:
                record[kind][name] = digest(run.path / name)
            write_atomically(part.path, seal(record), durable=False, private=part.private)


def reopen(run: RunDir, round: int, marks: Marks, *, forgotten: Collection[str] = AT_END) -> None:
    """Go back to a checkpoint, before its files are cut: remove later rounds from the manifest.

    ``forgotten``: files that the run writes again.
    """
    grows = tables(marks)
    for part in parts_of(run):
        if not part.path.exists():
            continue
        part.load()
        path = part.list.path
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        kept = [line for line in lines if json.loads(line)["round"] <= round]
        write_atomically(path, *kept, durable=False, private=part.private)
        part.list = Journal(path, "")
        part.list.cut(digest(path))
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
