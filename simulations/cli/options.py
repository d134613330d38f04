"""What the commands of the command line share: how an option is written, and ``-c KEY=VALUE``."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from simulations.settings.settings import RUN

console = Console()


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


Choice = Annotated[list[str] | None, option("-c", metavar="KEY=VALUE", help="Any other setting; repeatable.")]


def merge(options: Mapping[str, Any], pairs: Sequence[str] | None) -> dict[str, Any]:
    """Options that are given (None: it is not) and ``-c key=value`` pairs. Raises ValueError for a pair without "="."""
    merged = {name: value for name, value in options.items() if value is not None}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ValueError(f"expected -c KEY=VALUE, got {pair!r}")
        merged[key.strip().replace("-", "_")] = value.strip()
    return merged
