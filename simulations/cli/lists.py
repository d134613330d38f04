"""The command line's lists: ``fedlsg settings``, ``workloads``, ``methods``, and ``fedlsg --version``."""

from typing import Annotated

import typer

from simulations.cli.options import console, option


def settings(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One setting, to see all of it.")] = None,
    markdown: Annotated[bool, option("--markdown", help="The page docs/settings.md.")] = False,
) -> None:
    """Every setting that -c NAME=VALUE takes, or one whole: meaning, unit, range, default, who uses it."""
    from simulations.settings.show import settings_command

    settings_command(name, markdown, console)


def workloads() -> None:
    """The data sets that fedlsg run WORKLOAD takes."""
    from simulations.settings.show import workloads_command

    workloads_command(console)


def methods() -> None:
    """The methods that fedlsg run --method takes."""
    from simulations.settings.show import methods_command

    methods_command(console)


def print_version(asked: bool) -> None:
    """Print the version of fedlsg and leave."""
    if asked:
        from fedlsg.version import version as version_of_code

        print(f"fedlsg {version_of_code()}")
        raise typer.Exit


def version(
    asked: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    """Nothing but the option."""
