"""What every command does with a damaged file of a run directory: each kind of damage, each file, each command.

    python -m benchmarks.damage                a table in Markdown; --out FILE keeps every trial as JSON
    python -m benchmarks.damage --package DIR  the same of another version of fedlsg, in DIR

Outcomes of a trial:

refused    the command ends with another status than 0, and its message names the file (or its folder)
said       it goes on, and says which file changed
no damage  text at the end of a log or a ledger copy that only grows: a longer one is no damage
unnamed    it ends with another status, and names nothing
silent     it goes on and says nothing: a failure
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
COMMON = (
    "digits", "-c", "clients=2", "-c", "rounds=3", "-c", "sample-rate=0.05", "-c", "noise-multiplier=2", "-c",
    "engine=local", "-c", "record-updates=true", "-c", "threads=1", "-c", "local-steps=1",
)  # fmt: skip
DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "flipped": lambda path: path.write_bytes(_flipped(path.read_bytes())),
    "removed": lambda path: path.unlink(),
    "edited": lambda path: path.write_bytes(_edited(path.read_bytes())),
}
"""Cut in half; emptied; one byte in the middle changed; removed; a digit changed in a text, or a line added."""
SAYS = ("changed since the run", "damaged", "missing", "not checked", "more than the last checkpoint", "no charge")
GROWS = ("run.log",)
OF_INTERRUPTED = ("report", "payload", "inspect", "audit", "attack", "resume")
"""Commands that are tried on a run that did not end, too. The others read it in the same way, or refuse it."""
NOT_USED = (".lock",)
"""Nothing in it is used."""


def commands(run: Path) -> dict[str, tuple[str, ...]]:
    """Every command that reads a run directory; quick ones."""
    there = str(run)
    return {
        "report": ("report", there),
        "compare": ("report", there, f"{run}-other", "--out", f"{run}-table"),
        "export": ("export", there, "--out", f"{run}-export"),
        "payload": ("payload", there, "--round", "1", "--client", "0", "--out", f"{run}-payload.npz"),
        "load_run": ("load_run", there),
        "inspect": ("inspect", there, "--examples", "4", "--out", f"{run}-inspection"),
        "audit": ("audit", there, "--canaries", "64", "--out", f"{run}-audit.json"),
        "attack": ("attack", there, "--images", "1", "--seconds", "0.2", "--out", f"{run}-attack"),
        "resume": ("resume", there),
    }


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def _edited(content: bytes) -> bytes:
    """Another digit where a text has one, as somebody improves an accuracy; else one more line."""
    for place in range(len(content) - 1, -1, -1):
        if content[place : place + 1].isdigit() and b"\x00" not in content:
            return content[:place] + (b"7" if content[place : place + 1] != b"7" else b"8") + content[place + 1 :]
    return content + b"one more line\n"


SERVE = """
import contextlib, io, json, sys, traceback, warnings
from pathlib import Path
import torch
torch.set_num_threads(1)
from simulations.cli import app
def call(arguments):
    out = io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            if arguments[0] == "load_run":
                import fedlsg
                warnings.simplefilter("always")
                run = fedlsg.load_run(arguments[1])
                run.summary, run.rounds, run.bytes, run.epsilon, run.model
            else:
                sys.argv = ["fedlsg", *arguments]
                app.main()
        except SystemExit as end:
            status = end.code or 0
        except (ValueError, OSError) as error:
            print(error)
            status = 1
        except Exception:
            traceback.print_exc()
            status = 1
    return {"status": status if isinstance(status, int) else 1, "text": out.getvalue()}
answers = sys.stdout
for line in sys.stdin:
    print(json.dumps(call(json.loads(line))), file=answers, flush=True)
"""


class Commands:
    """A process of a version of fedlsg that runs commands one after the other: importing torch takes longer."""

    def __init__(self, package: Path, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(package), "COLUMNS": "2000", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            cwd=folder, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def __call__(self, *arguments: str) -> tuple[int, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["status"], answer["text"]


def make(call: Commands, folder: Path) -> tuple[Path, Path]:
    """A finished run, and the same one as it was after its second round."""
    finished = folder / "finished"
    status, text = call("run", *COMMON, "--out", str(finished))
    assert status == 0, text
    stop = folder / "stop.py"
    stop.write_text("def after_two(row):\n    if row['round'] == 2:\n        raise KeyboardInterrupt\n")
    interrupted = folder / "interrupted"
    status, text = call("run", *COMMON, "-c", f"callbacks={stop}:after_two", "--out", str(interrupted))
    assert status != 0, text
    return finished, interrupted


def trials(
    call: Commands, folder: Path, original: Path, names: tuple[str, ...], damages: Collection[str] = tuple(DAMAGES)
) -> Iterator[dict[str, str]]:
    """Each damage to each kind of file (that of the first round, of the first client), seen by the commands."""
    every = sorted(p.relative_to(original).as_posix() for p in original.rglob("*") if p.is_file())
    kinds = {re.sub(r"-\d{6}", "", file): file for file in reversed(every)}
    for file in sorted(kinds.values()):
        if file in NOT_USED or not (original / file).stat().st_size:
            continue
        for damage, apply in DAMAGES.items():
            for name in names if damage in damages else ():
                run = folder / "run"
                for left in folder.glob("run*"):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                shutil.copytree(original, run)
                if name == "compare":
                    shutil.copytree(original, f"{run}-other")
                apply(run / file)
                status, text = call(*commands(run)[name])
                yield {"run": original.name, "file": file, "damage": damage, "command": name,
                       "outcome": judge(file, damage, status, text), "says": _last(text)}  # fmt: skip


def judge(file: str, damage: str, status: int, text: str) -> str:
    """The outcome of a trial, by what a user sees."""
    flat = " ".join(text.split())
    named = Path(file).name in flat or (file.startswith("updates") and f"{Path(file).parent}: " in flat)
    if status:
        return "refused" if named and "Traceback" not in text else "unnamed"
    if named and any(words in flat for words in SAYS):
        return "said"
    return "no damage" if file in GROWS and damage == "edited" else "silent"


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "changed since the run" in line), lines[-1] if lines else "")[:300]


def table(found: list[dict[str, str]]) -> str:
    """Markdown: a row for each command, a column for each outcome; then what is silent or unnamed."""
    outcomes = ("refused", "said", "no damage", "unnamed", "silent")
    lines = ["| command | trials | " + " | ".join(outcomes) + " |", "|" + "---|" * (len(outcomes) + 2)]
    for name in (*dict.fromkeys(one["command"] for one in found), "all"):
        own = Counter(one["outcome"] for one in found if name in ("all", one["command"]))
        lines.append(f"| {name} | {own.total()} | " + " | ".join(str(own[outcome]) for outcome in outcomes) + " |")
    wrong = Counter((one["file"], one["command"], one["outcome"]) for one in found if one["outcome"] in outcomes[3:])
    lines += [""] + [f"- {outcome}: {file}, {command}: {count}" for (file, command, outcome), count in wrong.items()]
    return "\n".join(lines)


def main() -> None:
    """Run all trials and print the table."""
    parser = argparse.ArgumentParser(description="What every command does with a damaged file of a run.")
    parser.add_argument("--package", type=Path, default=REPOSITORY, help="folder of the version of fedlsg")
    parser.add_argument("--commands", help="some of the commands, with commas")
    parser.add_argument("--damages", default=",".join(DAMAGES), help="some kinds of damage")
    parser.add_argument("--states", default="finished,interrupted")
    parser.add_argument("--out", type=Path, help="every trial as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="damage-") as base:
        folder = Path(base)
        call = Commands(given.package.resolve(), folder)
        originals = dict(zip(("finished", "interrupted"), make(call, folder), strict=True))
        found = []
        for state in given.states.split(","):
            for name in commands(folder):
                if given.commands is None or name in given.commands.split(","):
                    if state == "interrupted" and name not in OF_INTERRUPTED:
                        continue
                    for trial in trials(call, folder, originals[state], (name,), given.damages.split(",")):
                        found.append(trial)
                        if given.out is not None:
                            given.out.write_text(json.dumps(found, indent=1))
    print(table(found))


if __name__ == "__main__":
    main()
