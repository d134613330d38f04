"""``python -m docs._sphinx.troubleshooting``: write docs/troubleshooting.md again, from errors that
really come.

Each command is typed in a folder with the files of ``prepare``, and the page has the error that
fedlsg prints there.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

FILE = Path(__file__).resolve().parents[1] / "troubleshooting.md"
HEAD = """# Troubleshooting

Every error of fedlsg is one line that says what was expected, what was found, and what to do. Search this page for a
word of yours. `python -m docs._sphinx.troubleshooting` typed these commands and wrote down what came. Two hospitals
have a list of [refusals](deployment.md#11-what-a-refusal-looks-like) and of [faults](deployment.md#15-faults).

In Python the line is below yours and one of fedlsg; `FEDLSG_TRACEBACK=full` in the environment shows all lines between, and those above the line of a command.
[Seventy-two typical mistakes](results/errors.md) are there with what is said of each.
"""
WITHOUT = (
    (
        "`fedlsg: command not found`",
        "the environment is not active in this terminal",
        "`. .venv/bin/activate`, or `.venv/bin/fedlsg`",
    ),
    (
        "Ray does not start, or the machine has one core",
        "Ray needs several processes and shared memory",
        "`fedlsg run --engine local`: the same algorithm in one process",
    ),
    (
        "`Killed`",
        "no memory is left",
        "`--workers 1`, a smaller `--batch-size`, or `--engine local`",
    ),
    (
        "you pressed Ctrl-C, or the machine stopped",
        "the finished rounds are on disk",
        "`fedlsg resume RUN`; clients of the round that was cut off may be charged a second time "
        "for it",
    ),
    (
        "`--open` shows no page",
        "no browser, or no screen",
        "open `live.html` of the run directory in a browser of this machine",
    ),
    (
        "accuracy stays near guessing",
        "too much noise for the learning rate",
        "[choosing settings](choosing.md)",
    ),
)
"""What is seen, its cause and its fix, where no error of fedlsg comes."""
MODEL = """import torch
from sklearn.datasets import load_digits
from torch import nn

import fedlsg

x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
net = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
x, train, test = x.float(), slice(1400), slice(1400, None)
data = {"train": (x[train], y[train]), "test": (x[test], y[test])}
digits = fedlsg.Workload(model=lambda: net, loss=nn.CrossEntropyLoss(), **data)
"""


@dataclass(frozen=True)
class Case:
    """A command that fails, why, and what to do; ``words`` are in its error."""

    command: str
    words: str
    cause: str
    fix: str


CASES = {
    "Type a command": [
        Case(
            "run --epsilom 3",
            "did you mean",
            "An option is misspelt.",
            "Take the name that the error offers; `fedlsg settings` lists all.",
        ),
        Case(
            "run -c learning_rte=0.1",
            "unknown setting",
            "A setting is misspelt.",
            "`fedlsg settings` lists all.",
        ),
        Case(
            "run --seed 1 2",
            "takes one value",
            "An option takes one value, and two were given.",
            "For several seeds: `fedlsg compare digits --seeds 2`.",
        ),
        Case(
            "run cifra10",
            "unknown workload",
            "The data set has another name, or is your own.",
            "`fedlsg list workloads`; your own is `FILE.py:NAME` ([how](own.md)).",
        ),
        Case(
            "run --sparsity 1.5",
            "expected 0",
            "A value is out of its range.",
            "The error says the range; `fedlsg settings sparsity` says the meaning.",
        ),
        Case(
            "run --method dpsgd --rank 4",
            "has no setting",
            "The setting belongs to other methods.",
            "Leave it out, or choose a method that has it: [methods](methods.md).",
        ),
        Case(
            "run --trust aggregate --codec noise-floor",
            "needs codec=float32",
            "Two settings exclude each other.",
            "The error names the value that goes with the other.",
        ),
        Case(
            "run --clients 5000",
            "number of examples",
            "There are more clients than examples.",
            "Fewer clients, or more data.",
        ),
        Case(
            "calibrate",
            "give either",
            "Noise or epsilon: one is given, the other follows.",
            "`fedlsg calibrate --epsilon 3`.",
        ),
    ],
    "Use your own model and data": [
        Case(
            "run gone.py:model",
            "no file",
            "The path is relative to the folder that you are in.",
            "Check the folder, or give the whole path.",
        ),
        Case(
            "run mine.py:model",
            "has no",
            "The file has no such name.",
            "Name one that it has: [how](own.md).",
        ),
        Case(
            "run batchnorm.py:digits",
            "BatchNorm",
            "BatchNorm mixes examples, so no example has a gradient of its own.",
            "`fedlsg.make_supported(model)` puts GroupNorm in its place: [layers](layers.md).",
        ),
        Case(
            "run cifar10 --data-dir nowhere",
            "no folder",
            "The mirror of the data has another layout.",
            "Put the files where the error expects them, or leave out `--data-dir` to download.",
        ),
    ],
    "Continue, read and attack a run": [
        Case(
            "run --out used",
            "not empty",
            "Nothing is overwritten.",
            "Another `--out`, or none: then the folder has the time in its name.",
        ),
        Case(
            "resume gone",
            "no run directory",
            "The folder does not exist, or is no run.",
            "`fedlsg runs` lists the runs of `runs/`.",
        ),
        Case(
            "report edited",
            "changed since the run",
            "A file of the run is not what the run wrote.",
            "Restore it from a copy. Nothing is computed from an edited file.",
        ),
        Case(
            "attack finished",
            "no recorded updates",
            "The run kept no updates: an attack has nothing to look at.",
            "Run again with `--record-updates`.",
        ),
        Case(
            "export unfinished",
            "finish",
            "The run has no final model.",
            "`fedlsg resume RUN`, then export.",
        ),
        Case(
            "runs nowhere",
            "there are no runs",
            "There is no such folder.",
            "Name the folder that has your runs.",
        ),
    ],
    "Compare and tune": [
        Case(
            "compare digits --methods lsg,gone",
            "unknown method",
            "A method is misspelt.",
            "`fedlsg list methods`.",
        ),
        Case(
            "compare digits --methods lsg --trials 3",
            "belongs to --search",
            "Trials are of a search.",
            "Say what is searched: [tuning](tuning.md).",
        ),
        Case(
            "compare --grid gone.toml",
            "grid file",
            "The file is not there.",
            "Give its path; [its form](comparing.md#a-grid-file).",
        ),
        Case(
            "run --preset lsg",
            "preset",
            "A preset is one row of a paper.",
            "`fedlsg list presets lsg` lists them.",
        ),
    ],
}


def prepare(folder: Path) -> None:
    """The files that the commands find: code, a finished run, an edited one, and one that is not
    finished.
    """
    (folder / "mine.py").write_text("x = 1\n")
    (folder / "batchnorm.py").write_text(MODEL)
    (folder / "used").mkdir()
    (folder / "used" / "config.toml").touch()
    say("run --rounds 1 --sample-rate 0.02 --out finished")
    for copy in ("edited", "unfinished"):
        shutil.copytree(folder / "finished", folder / copy)
    with (folder / "edited" / "rounds.csv").open("a") as rows:
        rows.write("1,2,3\n")
    for pattern in (
        "summary.json",
        "model.safetensors",
        "manifest.json*",
        "clients/manifest.json*",
    ):
        for path in (folder / "unfinished").glob(pattern):
            path.unlink()


def say(command: str) -> str:
    """What fedlsg prints to stderr for a command, in the working directory."""
    from fedlsg.simulations.cli.command_line import main

    # no Ray is started
    words = shlex.split(command) + (["--engine", "local"] if command.startswith("run ") else [])
    said, place = io.StringIO(), f"{Path.cwd()}/"
    quiet = contextlib.redirect_stdout(io.StringIO())
    asked = patch.object(sys, "argv", ["fedlsg", *words])
    with contextlib.redirect_stderr(said), quiet, contextlib.suppress(SystemExit), asked:
        main()
    return said.getvalue().strip().replace(place, "")


def errors() -> Iterator[tuple[str, Case, str]]:
    """Every case with its chapter and the error that came."""
    with (
        tempfile.TemporaryDirectory() as name,
        contextlib.chdir(name),
        patch.dict(os.environ, {"COLUMNS": "9999"}),
    ):
        prepare(Path.cwd())
        for chapter, cases in CASES.items():
            for case in cases:
                yield chapter, case, say(case.command)


def page() -> str:
    """The page. Raises ValueError for a command that no longer fails as the page says."""
    lines, before = [HEAD], ""
    for chapter, case, error in errors():
        if not error.startswith("fedlsg: error: ") or case.words not in error:
            raise ValueError(
                f"fedlsg {case.command}: expected an error with {case.words!r}, and got {error!r}"
            )
        lines += [f"\n## {chapter}\n"] if chapter != before else []
        before = chapter
        lines.append(
            f"\n```text\n$ fedlsg {case.command}\n{wrapped(error)}\n```\n\n{case.cause} **Fix:** "
            f"{case.fix}\n"
        )
    table = ("you see", "cause", "fix"), ("---",) * 3, *WITHOUT
    rows = [f"| {' | '.join(row)} |\n" for row in table]
    return "".join([*lines, "\n## It does not start, or stops without an error\n\n", *rows])


LISTS = re.compile(r"(known: |expected one of |it has )[\w\-, ]+")
"""Lists of all names, which change with every new one."""


def wrapped(error: str, width: int = 100) -> str:
    """The error in lines, without the lists of all names."""
    words = LISTS.sub(r"\1...", error)
    return "\n".join(textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False))


if __name__ == "__main__":
    FILE.write_text(page())
    print(FILE)
