"""How an option of the command line is written."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from simulations.plan.trust import READS, allow_code
from simulations.settings.run import Device
from simulations.settings.settings import RUN, code_in

console = Console()


def starting() -> AbstractContextManager[Any]:
    """A live line on a terminal while a command imports what it needs, which takes seconds; else nothing."""
    return console.status("starting")


def option(*names: str, help: str, metavar: str | None = None) -> Any:
    """An option whose own help says its default, in words that also cover what a workload decides."""
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


def setting(name: str, *names: str) -> Any:
    """The option of a setting of every run: its declaration's sentence, choices and default."""
    declared = RUN[name]
    words = [declared.setting.meaning.removesuffix(".")]
    words += [] if all(str(choice) in words[0] for choice in declared.choices) else [declared.range]
    words += [f"default {declared.default}"] if declared.kind is not bool and declared.default is not None else []
    return option(*names, help="; ".join(words) + ".")


def device_in(given: dict[str, Any]) -> Device:
    """Take the setting ``device`` out of given ones: a command that looks at a run has a device of its own.

    Raises ValueError for a device that is none.
    """
    found: Device = RUN["device"].parse(given.pop("device", RUN["device"].default))
    return found


def let_run(
    runs: Sequence[str], given: dict[str, Any], trust_code: bool, *, needs: Collection[str] = READS
) -> dict[str, Any]:
    """Let the code that run directories name run, as far as ``allow_code`` does; returns the other given settings."""
    used = {name for run in runs for name in allow_code(
        Path(run).expanduser(), given, trust_code=trust_code, needs=needs,
        say=lambda line: console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True),
    )}  # fmt: skip
    return {name: value for name, value in given.items() if name not in used}


def only_code(given: dict[str, Any]) -> dict[str, Any]:
    """Given settings, all of which name code. Raises ValueError for others: a run has its settings."""
    if other := sorted(given.keys() - code_in(given).keys()):
        raise ValueError(f"a run has its settings; leave out {', '.join(other)}, or name its own code as FILE.py:NAME")
    return given


TrustCode = Annotated[
    bool,
    option("--trust-code", help="Run the code that RUN names, as it was recorded; prints file and digest before."),
]
OwnWorkload = Annotated[str | None, option(help="The RUN's own, FILE.py:NAME, which may then run.")]
OwnMethod = Annotated[str | None, option(help="As --workload, of the RUN's own method.")]
OwnCode = Annotated[list[str] | None, option("-c", metavar="KEY=VALUE", help="RUN's own source or callbacks.")]
Choice = Annotated[list[str] | None, option("-c", metavar="KEY=VALUE", help="A setting, as --NAME VALUE; repeatable.")]
RayAddress = Annotated[
    str | None, option(help="Ray cluster to join, auto or HOST:PORT; default RAY_ADDRESS, else a Ray of its own.")
]
Opens = Annotated[bool, option("--open", help="Open a page in the browser that follows the run.")]
