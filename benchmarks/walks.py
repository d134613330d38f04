"""Which files of fedlsg, strategies and simulations are entered on five ways through the code.

    python -m benchmarks.walks [--list]

A file is entered when a function of it is called; imports, comprehensions and generator expressions
do not count. A climb is a call into a package above the caller's (simulations > strategies >
fedlsg). A window opens with the call of one function, given with how many calls of it come before,
and closes with its return, or that of another one.
"""

import argparse
import inspect
import io
import sys
import tempfile
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

from fedlsg.simulations.cli.command_line import main as fedlsg

BASE = Path(__file__).resolve().parent.parent
PACKAGES = ("fedlsg", "strategies", "simulations")
RUN = [
    "run",
    "digits",
    "--method",
    "lsg",
    "--engine",
    "local",
    "--clients",
    "1",
    "--rounds",
    "2",
    "--record-updates",
    "-c",
    "sample_rate=0.05",
    "-c",
    "sparsity=0.2987654321",
]
RECORDED = [
    "run",
    "digits",
    "--method",
    "lsg",
    "--engine",
    "local",
    "--clients",
    "4",
    "--rounds",
    "2",
    "--record-updates",
    "--reproducible",
    "--seed",
    "3",
    "-c",
    "batch_size=1",
    "-c",
    "mechanism=none",
]
ATTACK = ["--images", "1", "--seconds", "5", "--attacks", "first-layer"]
WALKS: dict[str, list[tuple[str, int, str | None]]] = {
    "a batch through client_step": [("client_step", 1, None)],
    "a payload from client to server": [("answer", 1, "finish_round")],
    "the payload alone, from packing to the sum": [("pack_and_store", 1, "finish_round")],
    "a ledger entry": [
        ("entry_of", 1, None),
        ("SimulatedAccount.check", 1, None),
        ("RunLedger.charge", 1, None),
        ("Spent.receive", 1, None),
        ("merge", 0, None),
    ],
    "sparsity from the command line to the mask": [("main", 0, "keep_units")],
}
ATTACKED: dict[str, list[tuple[str, int, str | None]]] = {
    "an attack on a recorded run": [("main", 0, None)]
}


class Window:
    """What is entered between two moments."""

    def __init__(self, opens: str, before: int, closes: str | None) -> None:
        self.opens, self.before, self.closes = opens, before, closes
        self.state = "waiting"
        self.frame: FrameType | None = None
        self.files: dict[str, None] = {}
        self.climbs: set[str] = set()

    def see(self, frame: FrameType, event: str, file: str) -> None:
        """A call or a return of a function of ours."""
        code = frame.f_code
        if event == "call" and self.state == "waiting" and fits(code, self.opens):
            self.before -= 1
            if self.before < 0:
                self.state, self.frame = "open", None if self.closes else frame
        if self.state == "open" and event == "call":
            self._enter(frame, file)
            if self.closes and self.frame is None and fits(code, self.closes):
                self.frame = frame
        if event == "return" and self.state == "open" and frame is self.frame:
            self.state, self.frame = "done", None

    def _enter(self, frame: FrameType, file: str) -> None:
        if frame.f_code.co_name.startswith("<") and frame.f_code.co_name != "<lambda>":
            return
        self.files[file] = None
        back = frame.f_back
        while back is not None and own(back.f_code) is None:
            back = back.f_back
        caller = None if back is None else own(back.f_code)
        if (
            back is not None
            and caller is not None
            and level(file) > level(caller)
            and len(self.files) > 1
        ):
            self.climbs.add(
                f"{caller}:{back.f_code.co_qualname} -> {file}:{frame.f_code.co_qualname}"
            )


def fits(code: CodeType, name: str) -> bool:
    """Whether the function is the one named, as itself or as a method."""
    return code.co_qualname == name or (
        "<" not in code.co_qualname and code.co_qualname.endswith(f".{name}")
    )


def own(code: CodeType, known: dict[str, str | None] = {}) -> str | None:  # noqa: B006 - a cache
    """The file of a function of ours, relative to the repository."""
    name = code.co_filename
    if name not in known:
        path = Path(name).resolve()  # through the links in fedlsg
        inside = name.endswith(".py") and any(
            path.is_relative_to(BASE / package) for package in PACKAGES
        )
        known[name] = str(path.relative_to(BASE)) if inside else None
    return known[name] if code.co_flags & inspect.CO_OPTIMIZED else None


def level(file: str) -> int:
    """The place of a file's package, from the ground up."""
    return PACKAGES.index(file.split("/")[0])


def walk(
    arguments: list[str], walks: dict[str, list[tuple[str, int, str | None]]]
) -> dict[str, list[Window]]:
    """The windows of all walks, filled by one command."""
    windows = {name: [Window(*one) for one in parts] for name, parts in walks.items()}
    every = [window for parts in windows.values() for window in parts]

    def look(frame: FrameType, event: str, _: Any) -> None:
        file = own(frame.f_code) if event in ("call", "return") else None
        if file is not None:
            for window in every:
                if window.state != "done":
                    window.see(frame, event, file)

    sys.argv = ["fedlsg", *arguments]
    # a function of a user's that sees all frames is refused: this one only notes their files
    silent = redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO())
    with silent[0], silent[1], unseen("gradients.isolation.batched"), unseen("user_code.library"):
        sys.setprofile(look)
        try:
            fedlsg()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)
    missed = [window.opens for window in every if window.state == "waiting"]
    if missed:
        raise RuntimeError(f"never called: {missed}; correct WALKS")
    return windows


def unseen(module: str) -> AbstractContextManager[object]:
    """Hide the trace functions of this process from a module that looks at them."""
    return patch(f"fedlsg.{module}.tracers", list)


def files_of(windows: list[Window]) -> list[str]:
    """The files of a walk, in the order in which they are entered."""
    return list(dict.fromkeys(file for window in windows for file in window.files))


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--list", action="store_true", help="the files, in the order in which they are entered"
    )
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = walk([*RUN, "--out", f"{folder}/run"], WALKS)
        walk([*RECORDED, "--out", f"{folder}/recorded"], {})
        found |= walk(
            ["attack", f"{folder}/recorded", *ATTACK, "--out", f"{folder}/attack"], ATTACKED
        )
    print("| walk | files entered | climbs |\n|---|---|---|")
    for name, windows in found.items():
        files = files_of(windows)
        climbs = {climb for window in windows for climb in window.climbs}
        print(f"| {name} | {len(files)} | {len(climbs)} |")
        if given.list:
            print("\n".join([*files, *(f"climb {climb}" for climb in sorted(climbs))]))


if __name__ == "__main__":
    main()
