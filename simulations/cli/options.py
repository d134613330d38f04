"""How an option of the command line is written."""

from contextlib import AbstractContextManager
from typing import Annotated, Any

import typer
from rich.console import Console

from simulations.settings.run import Device
from simulations.settings.settings import RUN

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


Choice = Annotated[list[str] | None, option("-c", metavar="KEY=VALUE", help="Any other setting; repeatable.")]
RayAddress = Annotated[
    str | None, option(help="Ray cluster to join, auto or HOST:PORT; default RAY_ADDRESS, else a Ray of its own.")
]
