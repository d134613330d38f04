"""The commands of comparisons: ``fedlsg compare``, ``report`` and ``runs``."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import click
import typer
import typer.core

from fedlsg.simulations.cli.options import Label, RayAddress, console, option, starting
from fedlsg.simulations.settings.settings import merge

LINK = (
    "Seconds of transfer on broadband, mobile, datacentre or UP/DOWN/LATENCY (Mbit/s, Mbit/s, ms)."
)
JOBS = (
    "Runs at a time. Default with engine local: 1. With engine ray they share one Ray: as many as "
    "fit into it, but not more than this machine has processors, because each run is driven by a "
    "process here."
)
VARY = (
    "Any other setting with its values; repeatable: all combinations are run. Two settings make a "
    "heat map."
)
YES = "Do not ask before what takes longer than an hour; only a terminal is asked."
SEARCH = (
    "First choose settings of each method by trials: NAME=log:0.1..10, NAME=int:2..16, NAME=A,B,C, "
    "or a TOML file; repeatable. --seeds then also runs the best settings."
)
ON = (
    "With --search, rows of the trials: data:NAME or data:PATH (public rows), synthetic, or "
    "held-out (costs privacy, and says how much)."
)
SAMPLER = (
    "With --search: tpe or random, by Optuna; grid, every combination of lists, needs nothing. "
    "Without it: grid for lists of at most 20 combinations, else tpe."
)
MOVED = (
    "fedlsg tune is now fedlsg compare --search. For the same job give the method, the rows and "
    "what to try: fedlsg compare WORKLOAD --methods METHOD --on ROWS --search "
    "learning_rate=log:0.1..10 (ranges, by Optuna), or --search learning_rate=0.2,0.4,0.8 "
    "--sampler grid (lists, without Optuna); -c and --epsilons as before"
)


def compare(
    workload: Annotated[
        str | None, typer.Argument(help="As in fedlsg run; default digits.")
    ] = None,
    methods: Annotated[str | None, option(help="Recipes with commas, or all.")] = None,
    epsilons: Annotated[
        str | None, option(help="Targets, as 1,3,8; default the workload's.")
    ] = None,
    seeds: Annotated[int | None, option(help="How many, from 0; default 1.")] = None,
    ranks: Annotated[str | None, option(help="For the methods that have a rank.")] = None,
    sparsities: Annotated[str | None, option(help="For the methods that have a sparsity.")] = None,
    vary: Annotated[list[str] | None, option(metavar="NAME=A,B,C", help=VARY)] = None,
    search: Annotated[list[str] | None, option(metavar="NAME=RANGE", help=SEARCH)] = None,
    sampler: Annotated[str | None, option(help=SAMPLER)] = None,
    trials: Annotated[
        int | None, option(help="With --search: trials of each method, default 20.")
    ] = None,
    on: Annotated[str | None, option(help=ON)] = None,
    study: Annotated[str | None, typer.Option(hidden=True)] = None,
    grid: Annotated[
        str | None, option(help="TOML file of a grid; options replace what it says.")
    ] = None,
    budget_minutes: Annotated[float | None, option(help="Start no run after this time.")] = None,
    yes: Annotated[bool, option("--yes", help=YES)] = False,
    jobs: Annotated[int | None, option(help=JOBS)] = None,
    engine: Annotated[str | None, option(help="local (default) or ray.")] = None,
    axis: Annotated[
        str | None, option(help="epsilon (default), or bytes: accuracy against all bytes.")
    ] = None,
    link: Annotated[str | None, option(help=LINK)] = None,
    label: Label = None,
    out: Annotated[
        str | None, option(help="Folder; default runs/compare-WORKLOAD, runs/search-WORKLOAD.")
    ] = None,
    data_dir: Annotated[str | None, option(help="Local mirror of the data.")] = None,
    ray_address: RayAddress = None,
    config: Annotated[
        list[str] | None,
        option(
            "-c",
            metavar="KEY=VALUE",
            help="Setting of every method; METHOD.KEY=VALUE of one. Repeatable.",
        ),
    ] = None,
) -> int:
    """Run or resume methods x epsilons x ranks x sparsities x varied settings x seeds.

    Leaves one table, plots and report.html. The first rounds give an estimate of the time; above an
    hour a terminal is asked whether to go on. A setting that a method lacks is left out for it.
    """
    if study is not None:
        raise ValueError(
            f"--study is now --search, and says the rows of its trials: --search {study!r} --on "
            "held-out"
        )
    axes: dict[str, object] = {
        "methods": methods,
        "epsilons": epsilons,
        "ranks": ranks,
        "sparsities": sparsities,
    }
    axes |= {"seeds": seeds, "vary": vary}
    with starting():
        from fedlsg.simulations.compare.compare_command import compare_command, make_grid
        from fedlsg.simulations.compare.grid.runner import Limits
        from fedlsg.simulations.compare.results.bytes_axis import make_view
        from fedlsg.simulations.compare.results.lines import full_labels
        from fedlsg.simulations.engines import use_cluster
        from fedlsg.simulations.report.pages.figure import check_drawing

        check_drawing()

    engine = engine or (None if ray_address is None else "ray")
    use_cluster(ray_address, engine or "local")
    view = make_view(axis, link, label)
    limits = Limits(jobs=jobs, budget_minutes=budget_minutes, yes=yes)
    made = make_grid(workload, axes, merge({"engine": engine, "data_dir": data_dir}, config), grid)
    view = replace(view, labels=full_labels(view.labels, (one.label for one in made.entries)))
    if search:
        from fedlsg.simulations.compare.search import make_job, search_and_runs

        with console.status("loading data"):
            job = make_job(made, search, sampler=sampler, trials=trials, on=on, out=out)
        runs = seeds is not None
        return search_and_runs(job, console, limits, runs=runs, view=view)
    for name, value in {"sampler": sampler, "trials": trials, "on": on}.items():
        if value is not None:
            raise ValueError(f"--{name} belongs to --search: add that, or leave it out")
    return compare_command(made, out, limits, console, view)


def tune() -> None:
    """Refuse, with the command line that does the same job now."""
    raise ValueError(MOVED)


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run directories, or folders of a comparison."),
    ],
    axis: Annotated[
        str | None, option(help="epsilon (default), or bytes: accuracy against all bytes.")
    ] = None,
    link: Annotated[str | None, option(help=LINK)] = None,
    label: Label = None,
    against: Annotated[
        str | None,
        option(help="One RUN's page also names the accuracy of this one, without privacy."),
    ] = None,
    out: Annotated[
        str | None, option(help="Folder; default runs/<time>-report, or a single run's.")
    ] = None,
) -> None:
    """Table, plots and report.html from existing runs.

    RUN is a run directory, or the folder of a comparison, which means all of its runs.
    """
    with starting():
        from fedlsg.simulations.compare.compare_command import report_command
        from fedlsg.simulations.compare.results.bytes_axis import make_view

    report_command(runs, out, console, make_view(axis, link, label), against)


COMPARE = "--compare"


class RunsCommand(typer.core.TyperCommand):
    """``--compare`` takes all words up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(repeat_option(args)))


def repeat_option(args: Sequence[str]) -> list[str]:
    """The arguments with ``--compare`` before each of its words: click takes one a time."""
    repeated: list[str] = []
    in_compare = False
    for word in args:
        if word.startswith("-"):
            in_compare = word == COMPARE
        elif in_compare and repeated[-1] != COMPARE:
            repeated.append(COMPARE)
        repeated.append(word)
    return repeated


def runs(
    folder: Annotated[
        str, typer.Argument(metavar="[FOLDER]", help="Folder of run directories; default runs.")
    ] = "runs",
    sort: Annotated[
        str, option(help="Column: accuracy, began (default), bytes, epsilon, method, run, ...")
    ] = "began",
    reverse: Annotated[bool, option("--reverse", help="The other way round.")] = False,
    json: Annotated[bool, option("--json", help="For programs.")] = False,
    compare: Annotated[
        list[str] | None, option(metavar="RUN...", help="These side by side.")
    ] = None,
    html: Annotated[
        str | None, option(metavar="FILE", help="Write a page; its ticked runs are side by side.")
    ] = None,
    opens: Annotated[
        bool, option("--open", help="Open that page; default FOLDER/runs.html.")
    ] = False,
) -> None:
    """List the runs of FOLDER: state, method, epsilon and against whom, accuracy, bytes, time.

    Nothing of a run is run. A directory that cannot be read is named, and left out.
    """
    with starting():
        from fedlsg.simulations.cli.runs import runs_command

    runs_command(
        folder,
        console,
        sort=sort,
        reverse=reverse,
        json=json,
        compare=compare or (),
        html=html,
        opens=opens,
    )
