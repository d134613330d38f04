"""``fedlsg runs``: what is in a folder of runs, and chosen ones side by side. Its options are parsed here."""

from collections.abc import Sequence
from typing import Annotated

import click
import typer
import typer.core

from simulations.cli.options import console, option, starting

COMPARE = "--compare"


class RunsCommand(typer.core.TyperCommand):
    """``--compare`` takes all words up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_each(args)))


def _each(args: Sequence[str]) -> list[str]:
    found, inside = list[str](), False
    for word in args:
        repeated = inside and not word.startswith("-") and found[-1] != COMPARE
        found += [COMPARE, word] if repeated else [word]
        inside = word == COMPARE if word.startswith("-") else inside
    return found


def runs(
    folder: Annotated[
        str, typer.Argument(metavar="[FOLDER]", help="Folder of run directories; default runs.")
    ] = "runs",
    sort: Annotated[str, option(help="Column: accuracy, began (default), bytes, epsilon, method, run, ...")] = "began",
    reverse: Annotated[bool, option("--reverse", help="The other way round.")] = False,
    json: Annotated[bool, option("--json", help="For programs.")] = False,
    compare: Annotated[list[str] | None, option(metavar="RUN...", help="These side by side.")] = None,
    html: Annotated[str | None, option(metavar="FILE", help="Write a page; its ticked runs are side by side.")] = None,
    opens: Annotated[bool, option("--open", help="Open that page; default FOLDER/runs.html.")] = False,
) -> None:
    """List the runs of FOLDER: state, method, epsilon and against whom, accuracy, bytes, time.

    Nothing of a run is run. A directory that cannot be read is named, and left out.
    """
    with starting():
        from simulations.exports.runs import runs_command

    runs_command(folder, console, sort=sort, reverse=reverse, json=json, compare=compare or (), html=html, opens=opens)
