"""A real federation, one fault at a random moment, and what is left: twenty trials by seed.

    python -m benchmarks.deployment_faults                     # a row of Markdown for each seed
    python -m benchmarks.deployment_faults --seeds 7 --keep FOLDER

The federation is that of docs/deployment.md with its commands: a SuperLink and two SuperNodes with
TLS, keys and data of their own. A trial starts a run, does what the fault says, and then what the
document tells a user to do. Each hospital's app also writes down what it really did
(``flower/witness.py``), which is compared with the ledgers. The next trial is the next run of the
same federation and the same ledgers; after a trial that found something, a new federation is made.
Linux only; a C compiler moves clocks.
"""

import argparse
import csv
import hashlib
import json
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.flower.hospitals import (
    HOSPITALS,
    KILLED,
    REPOSITORY,
    ROUNDS,
    RUN,
    SET_UP,
    Federation,
    chapters,
    copies,
    federation,
    follow,
    ledger,
    run_folders,
)
from benchmarks.flower.how_to import Block
from benchmarks.flower.machines import Machine, wait_until
from fedlsg.privacy import Entry

KINDS = (
    "SuperLink killed",
    "SuperNode killed",
    "ClientApp killed",
    "ServerApp killed",
    "node stopped",
    "node slow",
    "clock jumps",
    "hospital loses power",
    "server loses power",
)
"""In turns over the seeds."""
PROGRAMS = {
    "SuperLink killed": "flower-superlink",
    "SuperNode killed": "flower-supernode",
    "ClientApp killed": "flwr-clientapp",
    "ServerApp killed": "flwr-serverapp",
}
OF_SERVER = ("SuperLink killed", "ServerApp killed", "server loses power")
FEW = 3
"""Rounds of a run."""
START_SECONDS, ROUND_SECONDS = 30.0, 15.0
"""From the start of a run to its first round's end, and a round, as a machine with two cores takes
them; a moment is drawn within.
"""
STOPPED_SECONDS, SLOW_SECONDS = (10.0, 90.0), (5.0, 40.0)
JUMPS = (-4000, -400, -40, 40, 400, 4000)
"""Seconds."""
PATIENCE = 900.0
DELTA = 1e-5
OF_TASKS = ("flwr-clientapp", "flwr-serverapp")
SETTINGS = ("epsilon = 2.0\n", "noise-multiplier = 2.0\nrecord-updates = true\n")
"""Of the document, and in its place: an attempt more must fit into a hospital's epsilon."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens, where, and when: ``seconds`` after so many rounds are ``finished``.

    size: seconds that a node is stopped or slower, or that its clock jumps.
    """

    kind: str
    machine: str
    finished: int
    seconds: float
    size: float

    @classmethod
    def of(cls, seed: int) -> "Fault":
        """That of a seed."""
        draw = random.Random(seed)
        kind = KINDS[seed % len(KINDS)]
        finished = draw.randrange(FEW)
        most = ROUND_SECONDS if finished else START_SECONDS
        hospital = draw.choice(HOSPITALS)
        sizes = {
            "node stopped": draw.uniform(*STOPPED_SECONDS),
            "node slow": draw.uniform(*SLOW_SECONDS),
            "clock jumps": float(draw.choice(JUMPS)),
        }
        return cls(
            kind=kind,
            machine="server" if kind in OF_SERVER else hospital,
            finished=finished,
            seconds=draw.uniform(0.0, most),
            size=sizes.get(kind, 0.0),
        )

    def __str__(self) -> str:
        size = f", {self.size:.0f} s" if self.size else ""
        return f"{self.kind} ({self.machine}{size})"

    @property
    def moment(self) -> str:
        """When it happens."""
        return f"{self.finished} rounds and {self.seconds:.1f} s"


@dataclass(kw_only=True)
class Trial:
    """A federation with one fault. ``wrong``: what is not as it should be, in words.

    commands: what the user typed after the fault. endings: last lines of each ``flwr run``.
    before: rounds.csv at the fault. earlier: how many runs, and entries and witnessed lines of each
    hospital, earlier trials have left.
    """

    @classmethod
    def begin(cls, made: Federation, fault: Fault) -> "Trial":
        """In a federation that earlier trials may have used."""
        earlier = {"runs": len(run_folders(made))}
        for name in HOSPITALS:
            earlier[f"{name} lines"] = len(witnessed(made[name]))
            earlier[f"{name} entries"] = len(entries_of(made, name))
            for left in ("slow", "clock"):
                (made[name].home / "witness" / left).unlink(missing_ok=True)
        return cls(made=made, fault=fault, earlier=earlier)

    made: Federation
    fault: Fault
    earlier: Mapping[str, int] = field(default_factory=dict)
    before: str = ""
    began: float = field(default_factory=time.monotonic)
    commands: list[str] = field(default_factory=list)
    endings: list[list[str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def server(self) -> Machine:
        return self.made["server"]

    @property
    def run(self) -> Path | None:
        """The run directory of this trial, None before there is one."""
        folders = run_folders(self.made)[self.earlier["runs"] :]
        return folders[-1] if folders else None

    @property
    def finished(self) -> int:
        """Rounds that the run has finished."""
        return max(rows_of(self.run).count("\n") - 1, 0)

    def entries(self, name: str) -> Sequence[Entry]:
        """What a hospital was charged in this trial."""
        return entries_of(self.made, name)[self.earlier[f"{name} entries"] :]

    @property
    def is_finished(self) -> bool:
        return self.run is not None and (self.run / "summary.json").exists()

    def start(self, text: str) -> "subprocess.Popen[bytes]":
        """Type a ``flwr run`` in a terminal of its own."""
        self.endings.append([])
        terminal = self.server.folder / self.terminal
        terminal.unlink(missing_ok=True)
        return self.server.start(text, terminal=self.terminal)

    @property
    def terminal(self) -> str:
        """The file of the last one."""
        return f"terminal-{self.earlier['runs']}-{len(self.endings)}"

    def read_ending(self) -> None:
        """The last lines of the ``flwr run`` that has ended."""
        printed = (self.server.folder / self.terminal).read_text()
        self.endings[-1] = [line.strip() for line in printed.splitlines() if line.strip()][-12:]

    # the fault

    def strike(self) -> None:
        """Do it at its moment."""
        wait_until(
            lambda: self.finished >= self.fault.finished,
            lambda: f"round {self.fault.finished}:\n{self.server.log[-3000:]}",
            PATIENCE,
        )
        time.sleep(self.fault.seconds)
        machine, kind = self.made[self.fault.machine], self.fault.kind
        if kind == "ClientApp killed":
            wait_until(lambda: bool(machine.processes("flwr-clientapp")), lambda: "a ClientApp")
        if kind == "ServerApp killed":
            wait_until(lambda: bool(machine.processes("flwr-serverapp")), lambda: "a ServerApp")
        self.before = rows_of(self.run)
        if kind in PROGRAMS:
            machine.signal(signal.SIGKILL, PROGRAMS[kind])
        elif kind == "node stopped":
            machine.signal(signal.SIGSTOP)
            time.sleep(self.fault.size)
            machine.signal(signal.SIGCONT)
        elif kind == "node slow":
            (machine.home / "witness" / "slow").write_text(f"{self.fault.size:g}")
        elif kind == "clock jumps":
            (machine.home / "witness" / "clock").write_text(f"{self.fault.size:.0f}")
        else:
            while machine.signal(signal.SIGKILL):
                time.sleep(0.05)

    # what the user does then, as the document says

    def proceed(self, running: "subprocess.Popen[bytes]") -> None:
        """Until the run is finished."""
        for _ in range(8):
            self._wait_for_trouble(running)
            self._start_missing()
            if running.poll() is None:
                continue
            self.read_ending()
            if self.is_finished:
                return
            self._check_words()
            running = self._go_on()
        self.wrong.append("not finished after eight steps")

    def _wait_for_trouble(self, running: "subprocess.Popen[bytes]") -> None:
        """Until the run has ended, or something that it needs is not there."""
        wait_until(
            lambda: running.poll() is not None or self._missing() != [],
            lambda: f"the end of flwr run:\n{self.server.log[-3000:]}",
            PATIENCE,
        )

    def _missing(self) -> list[str]:
        """Machines whose SuperLink or SuperNode does not run."""
        programs = {"server": "flower-superlink"} | dict.fromkeys(HOSPITALS, "flower-supernode")
        return [
            name for name, program in programs.items() if not self.made[name].processes(program)
        ]

    def _start_missing(self) -> None:
        for name in self._missing():
            if name == "server":
                (block,) = [b for b in chapters(KILLED) if b.stays]
            else:
                if (self.made[name].home / "witness" / "clock").exists():  # chapter 15: set it
                    (self.made[name].home / "witness" / "clock").write_text("0")
                (block,) = [b for b in chapters(SET_UP[-1]) if b.machines == (name,)]
            self.commands.append(f"{name} started again")
            follow(self.made, with_large_epsilon(block))

    def _go_on(self) -> "subprocess.Popen[bytes]":
        """The next ``flwr run``: with the run's own config once there is a run."""
        if self.run is None:
            self.commands.append("flwr run")
            return self.start(first_run())
        (block,) = [b for b in chapters(KILLED) if not b.stays]
        self.commands.append("flwr run --run-config RUN/config.toml")
        return self.start(block.text)

    def _check_words(self) -> None:
        """As soon as there is a run, its terminal names the command that continues it. Where the
        program that would say so was killed, or cut off, it had to say so before.
        """
        if self.run is None:
            return
        printed = (self.server.folder / self.terminal).read_text()
        last = self.endings[-1][-1] if self.endings[-1] else ""
        said = printed if self.fault.kind in OF_SERVER else last
        if f"fedlsg resume {self.run}" not in said:
            self.wrong.append(f"last line: {last}")

    # what is left

    def judge(self) -> None:
        """Every check, each with its own words."""
        time.sleep(3.0)
        run = self.run
        if run is None or not self.is_finished:
            self.wrong.append("no finished run")
            return
        if len(run_folders(self.made)) > self.earlier["runs"] + 1:
            self.wrong.append("more than one run directory")
        summary = json.loads((run / "summary.json").read_text())
        self._check_rounds(run, summary)
        for name in HOSPITALS:
            self._check_hospital(run, name)
        self._check_copies(run, summary)
        self._check_left(run)

    def _check_rounds(self, run: Path, summary: Mapping[str, Any]) -> None:
        if (summary["rounds"], summary["stopped"]) != (FEW, None):
            self.wrong.append(f"ended in round {summary['rounds']}: {summary['stopped']}")
        rows = rows_of(run)
        if not rows.startswith(self.before):
            self.wrong.append("finished rounds were lost")
        numbers = [int(row["round"]) for row in csv.DictReader(rows.splitlines())]
        if numbers != list(range(1, FEW + 1)):
            self.wrong.append(f"rounds {numbers}")

    def _check_hospital(self, run: Path, name: str) -> None:
        lines = witnessed(self.made[name])[self.earlier[f"{name} lines"] :]
        entries = self.entries(name)
        charged = Counter((entry.round, entry.attempt) for entry in entries)
        drew = Counter(tuple(line["entry"] or ()) for line in lines if line["what"] == "drew")
        wrong = {
            "in two runs": len({entry.run for entry in entries}) != 1,
            "charged an attempt twice": any(count > 1 for count in charged.values()),
            "drew twice for one charge": any(count > 1 for count in drew.values()),
            "drew without a charge": bool(drew.keys() - charged.keys()),
            "charged for what it had stored": bool(wasted(lines)),
            "sent what nobody charged": any(
                len(digests) > sum(entry.round == round for entry in entries)
                for round, digests in sent(lines).items()
            ),
            "used what it did not send": not used(run, name).items()
            <= {(round, digest) for round, all_ in sent(lines).items() for digest in all_},
        }
        interrupted = max(self.before.count("\n"), 1)
        # a round may have ended between the look at the table and the fault
        wrong["charged again in another round than the interrupted one"] = bool(
            {entry.round for entry in entries if entry.attempt} - {interrupted, interrupted + 1}
        )
        self.wrong += [f"{name} {words}" for words, is_so in wrong.items() if is_so]

    def _check_copies(self, run: Path, summary: Mapping[str, Any]) -> None:
        """The copies are whole, unless the server says that they may not be. Epsilon
        covers what the hospitals themselves have spent.
        """
        printed = (self.server.folder / self.terminal).read_text()
        for number, (name, copy) in enumerate(copies(run).items()):
            own = ledger(self.made, name).path.read_bytes()
            warned = f"client {number} is not connected" in printed and own.startswith(copy)
            if copy != own and not warned:
                self.wrong.append(f"the copy of the ledger of {name} is not whole")
        spent = max(ledger(self.made, name).epsilon(DELTA).upper for name in HOSPITALS)
        if summary["epsilon_max"] < spent * (1 - 1e-6):
            self.wrong.append(f"epsilon {summary['epsilon_max']:.4f} of {spent:.4f}")

    def _check_left(self, run: Path) -> None:
        deadline = time.monotonic() + 20.0
        while (
            left := [
                f"{program} on {name}"
                for name, machine in self.made.items()
                for program in OF_TASKS
                if machine.processes(program)
            ]
        ) and time.monotonic() < deadline:
            time.sleep(0.5)
        folders = [run, *(self.made[name].home / "federation" / "ledger" for name in HOSPITALS)]
        left += [path.name for folder in folders for path in folder.rglob("*.tmp*")]
        left += [
            f"tmp/{path.name} on {name}"
            for name, machine in self.made.items()
            for path in (machine.folder / "tmp").iterdir()
            if not (path.name.startswith("torchinductor_") or is_bundle(path))
        ]
        if left:
            self.wrong.append(f"left: {', '.join(sorted(left))}")

    @property
    def charges(self) -> str:
        """Charges of both hospitals, over those of a run without a fault."""
        made = sum(len(self.entries(name)) for name in HOSPITALS)
        return f"{made} for {FEW * len(HOSPITALS)}"

    def row(self, seed: int) -> str:
        """Of the table."""
        cells = (
            str(seed),
            str(self.fault),
            self.fault.moment,
            "; ".join(self.commands) or "nothing",
            self.charges,
            f"{time.monotonic() - self.began:.0f}",
            "; ".join(self.wrong) or "none",
        )
        return f"| {' | '.join(cells)} |"


def is_bundle(path: Path) -> bool:
    """Whether a temporary folder is an app that Flower was unpacking as its process ended: code
    that the server sent.
    """
    return (path / "witness.py").exists() or (path / "pyproject.toml").exists()


def entries_of(made: Federation, name: str) -> Sequence[Entry]:
    """All entries of a hospital's ledger."""
    return ledger(made, name).entries


def rows_of(run: Path | None) -> str:
    """Whole lines of rounds.csv."""
    table = None if run is None else run / "rounds.csv"
    text = table.read_text() if table is not None and table.exists() else ""
    return text[: text.rfind("\n") + 1]


def witnessed(machine: Machine) -> list[dict[str, Any]]:
    """What a hospital's app wrote down; a line that a kill has cut is none."""
    path = machine.home / "witness" / "lines.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def wasted(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Questions for which a hospital drew although it had answered the same one before."""
    answered, asked, found = set[str](), dict[int, str](), []
    for line in lines:
        if line["what"] == "asked":
            asked[line["process"]] = line["question"]
        elif line["what"] == "payload":
            answered.add(line["question"])
        elif line["what"] == "charged" and asked[line["process"]] in answered:
            found.append(asked[line["process"]])
    return found


def sent(lines: Sequence[Mapping[str, Any]]) -> dict[int, set[str]]:
    """Digests of the payloads that left, by round."""
    found: dict[int, set[str]] = {}
    for line in lines:
        if line["what"] == "payload":
            found.setdefault(line["round"], set()).add(line["digest"])
    return found


def used(run: Path, name: str) -> dict[int, str]:
    """Digests of a hospital's payloads that the server has used, by round."""
    number = HOSPITALS.index(name)
    files = (run / "updates").glob(f"round-*/client-{number:06d}.bin")
    return {
        int(path.parent.name.removeprefix("round-")): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def first_run() -> str:
    """The commands of chapter 7 that start a run, with our rounds and noise."""
    text = chapters(RUN)[0].text
    for before, after in ((f"rounds = {ROUNDS}\n", f"rounds = {FEW}\n"), SETTINGS):
        assert before in text
        text = text.replace(before, after)
    return text


def witnessing(folder: Path) -> Path:
    """A copy of the clone whose ClientApp is the witness."""
    clone = folder / "clone"
    ours = ("fedlsg", "strategies", "simulations")
    for name in ours:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, clone / name, symlinks=True, ignore=ignored)
    for name in ("build_backend.py", "LICENSE"):
        shutil.copy(REPOSITORY / name, clone)
    shutil.copy(REPOSITORY / "benchmarks" / "flower" / "witness.py", clone)
    project = (REPOSITORY / "pyproject.toml").read_text()
    for before, after in (
        ('"/build_backend.py",', '"/build_backend.py", "/witness.py",'),
        ("fedlsg.simulations.client.client_app:app", "witness:app"),
    ):
        assert before in project
        project = project.replace(before, after)
    (clone / "pyproject.toml").write_text(project)
    return clone


def build_clock(folder: Path) -> Path:
    """The library that moves the clock of a machine."""
    library = folder / "moved_clock.so"
    source = REPOSITORY / "benchmarks" / "flower" / "moved_clock.c"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


@contextmanager
def witnessed_federation(folder: Path) -> Iterator[Federation]:
    """The document's federation up to its SuperNodes, whose hospitals are witnessed, and have an
    epsilon for all trials.
    """
    with federation(folder / "machines", witnessing(folder)) as made:
        library = build_clock(folder)
        for name in HOSPITALS:
            witness = made[name].home / "witness"
            witness.mkdir()
            made[name].run(f"export MOVED_CLOCK={witness}/clock LD_PRELOAD={library}")
        for block in chapters(*SET_UP):
            follow(made, with_large_epsilon(block))
        yield made


def with_large_epsilon(block: Block) -> Block:
    """The block, with a budget that all trials together fit into."""
    return replace(block, text=re.sub(r"epsilon-max=[\d.]+", "epsilon-max=1000.0", block.text))


def run_trial(made: Federation, fault: Fault) -> Trial:
    """One trial."""
    trial = Trial.begin(made, fault)
    running = trial.start(first_run())
    try:
        trial.strike()
        trial.proceed(running)
        trial.judge()
    except AssertionError as error:
        trial.wrong.append(str(error).splitlines()[0])
    return trial


def run_trials(seeds: Sequence[int], folder: Path) -> Iterator[tuple[int, Trial]]:
    """The trials of some seeds, each as soon as it is over; federations are in ``folder``."""
    waiting, number = list(seeds), 0
    while waiting:
        number += 1
        place = folder / f"federation-{number}"
        place.mkdir()
        with witnessed_federation(place) as made:
            sound = True
            while waiting and sound:
                seed = waiting.pop(0)
                trial = run_trial(made, Fault.of(seed))
                describe(trial, place / f"trial-{seed}.json")
                yield seed, trial
                sound = not trial.wrong


def describe(trial: Trial, path: Path) -> None:
    """What the user saw, in a file."""
    facts = {
        "fault": str(trial.fault),
        "moment": trial.fault.moment,
        "commands": trial.commands,
        "endings": trial.endings,
        "wrong": trial.wrong,
    }
    path.write_text(json.dumps(facts, indent=1) + "\n")


def main() -> None:
    """Print the table, a row as soon as it is known; status 1 if a trial has found something."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=range(20))
    parser.add_argument("--keep", type=Path, help="an empty folder, in which all machines stay")
    given = parser.parse_args()
    print(
        f"fedlsg {version('fedlsg')}, Flower {version('flwr')}, torch {version('torch')}, Python "
        f"{platform.python_version()}, {platform.machine()}\n"
    )
    print("| seed | fault | after | typed then | charges | seconds | wrong |")
    print("|---|---|---|---|---|---|---|", flush=True)
    failed = False
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        for seed, trial in run_trials(given.seeds, given.keep or Path(temporary)):
            print(trial.row(seed), flush=True)
            failed |= bool(trial.wrong)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
