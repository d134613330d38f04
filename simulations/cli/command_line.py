"""The command line: its entry point, and ``fedlsg run``, ``plan``, ``resume``, ``calibrate``.

``compare``, ``report`` and ``runs`` are in ``fedlsg.simulations.cli.compare``; ``inspect``,
``audit``, ``attack``, ``export`` and ``payload`` in ``examine``; ``list``, ``settings`` and
``docs`` in ``docs``.
"""

import atexit
import gc
import os
import sys
import time
import traceback
from typing import Annotated

import click
import typer
import typer.core
from click.shell_completion import get_completion_class, shell_complete
from rich.console import Console

from fedlsg.config.choices import choose
from fedlsg.simulations.cli.compare import RunsCommand, compare, report, runs, tune
from fedlsg.simulations.cli.docs import LISTS, docs, list_names, print_first_steps, settings
from fedlsg.simulations.cli.examine import attack, audit, export, inspect, payload
from fedlsg.simulations.cli.options import (
    Choice,
    Opens,
    OwnCode,
    OwnMethod,
    OwnWorkload,
    RayAddress,
    TrustCode,
    WithSettings,
    console,
    elsewhere,
    only_code,
    option,
    option_hint,
    starting,
)
from fedlsg.simulations.engines import signals
from fedlsg.simulations.settings.settings import RUN, merge, parse
from fedlsg.user_code.failure import last_words, without_exit
from fedlsg.user_code.short_traceback import FULL, VARIABLE

# with rich, typer would escape brackets in help that is printed plainly: "\\[required]"
typer.core.HAS_RICH = False

ABORTED = 130
"""Exit status of typer for Ctrl-C."""
INTERRUPTED = "interrupted"
COMPLETE = "_FEDLSG_COMPLETE"
"""The variable with which a shell asks for completions."""


class Commands(typer.core.TyperGroup):
    """The commands; a list may be named without the word ``list``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the arguments; the name of a list means ``list NAME``."""
        return super().resolve_command(ctx, ["list", *args] if args[0] in LISTS else args)


app = typer.Typer(
    cls=Commands,
    help="Federated learning whose updates are private, small and tested.",
    add_completion=False,
    suggest_commands=False,  # click does
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
errors = Console(stderr=True)


@app.command(cls=WithSettings)
def run(
    workload: Annotated[
        str | None,
        typer.Argument(
            help="digits (default), cifar10, glue-sst2, hf-image, ...; fedlsg list workloads lists "
            "all."
        ),
    ] = None,
    out: Annotated[
        str | None, option(help="Run directory; default runs/<time>-<workload>-<method>.")
    ] = None,
    opens: Opens = False,
    ray_address: RayAddress = None,
    config: Choice = None,
) -> None:
    """Train WORKLOAD across clients and leave a run directory.

    WORKLOAD is digits (default), cifar10, glue-sst2, hf-image, ...; fedlsg list workloads lists
    all.
    """
    began = time.monotonic()
    given = merge({"workload": workload}, config)
    from fedlsg.simulations.engines import ahead, use_cluster
    from fedlsg.simulations.settings.with_preset import first_look

    name = first_look(given)
    use_cluster(ray_address, name)
    with ahead(name):
        with starting():
            from fedlsg.simulations.run.commands import run_command

        run_command(given, out, console, opens=opens, began=began)


@app.command(cls=WithSettings, short_help="What a run would send, spend and take; trains nothing.")
def plan(
    workload: Annotated[str | None, typer.Argument(help="As in run; default digits.")] = None,
    phones: Annotated[
        int, option(help="Phones that take part in each round; default 1000.")
    ] = 1000,
    phone_dropout: Annotated[
        float, option(help="Share of them that leaves before it replies; default 0.2.")
    ] = 0.2,
    json: Annotated[bool, option("--json", help="All numbers, for programs.")] = False,
    config: Choice = None,
) -> None:
    """What a run with these settings would send, spend and take, without training: values, bytes,
    noise, epsilon, time.

    It takes the options of fedlsg run, and refuses what that refuses. Nothing is charged, and no
    run directory is made.
    """
    given = merge({"workload": workload}, config)
    from fedlsg.simulations.settings.with_preset import first_look

    first_look(given)
    with starting():
        from fedlsg.simulations.run.plan_command import plan_command

    plan_command(given, console, phones=phones, dropout=phone_dropout, as_json=json)


@app.command()
def resume(
    directory: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")],
    workload: OwnWorkload = None,
    method: OwnMethod = None,
    trust_code: TrustCode = False,
    opens: Opens = False,
    ray_address: RayAddress = None,
    rounds: Annotated[
        int | None, option(help="Rounds in all: a finished run trains further.")
    ] = None,
    epsilon: Annotated[
        float | None, option(help="For all rounds together; gives the noise of those that come.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, option(help="Given instead, for the rounds that come.")
    ] = None,
    config: OwnCode = None,
) -> None:
    """Continue an interrupted run from its last finished round; with --rounds, a finished one.

    Code of the run's own runs if you ran it before, from the same file, or name it here.
    """
    began = time.monotonic()
    named = only_code(merge({"workload": workload, "method": method}, config))
    counts = {"rounds": rounds, "epsilon": epsilon, "noise_multiplier": noise_multiplier}
    further = parse({name: value for name, value in counts.items() if value is not None})
    from fedlsg.simulations.engines import ahead, engine_of, use_cluster

    name = engine_of(directory)
    use_cluster(ray_address, name)
    with ahead(name):
        with starting():
            from fedlsg.simulations.run.commands import resume_command

        resume_command(
            directory,
            console,
            named,
            trust_code=trust_code,
            opens=opens,
            further=further,
            began=began,
        )


app.command(cls=WithSettings, short_help="A grid of runs: one table, plots and report.html.")(
    compare
)
app.command()(report)
app.command(cls=RunsCommand, short_help="The runs of a folder: list, sort, compare chosen ones.")(
    runs
)


@app.command(short_help="Noise multiplier for an epsilon, or the other way round.")
def calibrate(
    epsilon: Annotated[float | None, option(help="Target; gives the noise multiplier.")] = None,
    noise_multiplier: Annotated[float | None, option(help="Given instead; gives epsilon.")] = None,
    delta: Annotated[float, option(help="delta of (epsilon, delta); default 1e-5.")] = 1e-5,
    sample_rate: Annotated[float | None, option(help="Poisson rate q; default 0.01.")] = None,
    steps: Annotated[int, option(help="Number of private steps; default 1000.")] = 1000,
    epoch_batches: Annotated[
        int | None, option(help="Shuffled batches instead of Poisson ones: how many an epoch has.")
    ] = None,
) -> None:
    """Noise multiplier for a target epsilon, or epsilon of a noise multiplier, with its witness."""
    from fedlsg.simulations.run.commands import calibrate_command

    calibrate_command(
        epsilon, noise_multiplier, delta, sample_rate, steps, console, epoch_batches=epoch_batches
    )


@app.command(cls=WithSettings, short_help="Who would hold what: sizes and classes of the clients.")
def partition(
    workload: Annotated[
        str, typer.Argument(help="As in run; default digits.", show_default=False)
    ] = RUN["workload"].default,
    out: Annotated[str | None, option(help="Directory for partition.html, .csv and .png.")] = None,
    config: Choice = None,
) -> None:
    """Sizes and class balance of the clients that a run would have; trains nothing. Simulation
    only.
    """
    given = merge({"workload": workload}, config)
    with starting():
        from fedlsg.simulations.inspection.partition_view import partition_command

    partition_command(given, out, console)


app.command("list", short_help="Methods, workloads, codecs, or the papers' presets.")(list_names)
app.command(short_help="Every setting, or one whole: meaning, unit, range, default.")(settings)


@app.command(short_help="Completion of commands and options: eval it in bash, zsh or fish.")
def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", show_default=False)],
) -> None:
    """Print a script that completes commands, options and settings.

    Add it to the shell's own start: eval "$(fedlsg completion bash)", the same with zsh, or fedlsg
    completion fish | source.
    """
    made = get_completion_class(
        choose("shell", shell, {name: name for name in ("bash", "zsh", "fish")})
    )
    assert made is not None
    print(made(typer.main.get_command(app), {}, "fedlsg", COMPLETE).source())


def print_version(asked: bool) -> None:
    """Print the version of fedlsg and leave."""
    if asked:
        from fedlsg.user_code.digest import version as version_of_code

        print(f"fedlsg {version_of_code()}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def without_command(
    context: typer.Context,
    asked: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and leave.", is_eager=True, callback=print_version
        ),
    ] = False,
) -> None:
    """Without a command: the three things to do first."""
    if context.invoked_subcommand is None:
        print_first_steps(console)
        raise typer.Exit(2)


app.command(
    hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)(tune)
app.command(cls=WithSettings, short_help="Statistics of gradients without noise: NOT PRIVATE.")(
    inspect
)
app.command(cls=WithSettings, short_help="Try to prove a claimed epsilon wrong.")(audit)
app.command(cls=WithSettings, short_help="What recorded updates, or a released model, give away.")(
    attack
)
app.command(short_help="The trained model as a folder for torch or transformers.")(export)
app.command(short_help="One recorded payload as arrays of numpy.")(payload)
app.command(short_help="The documentation: its pages, or one of them.")(docs)


def main() -> None:
    """Entry point: every expected failure is one line on stderr and an exit status that is not 0.

    Ctrl-C, SIGTERM and SIGHUP end a command in the same way; the exit status is 128 and the
    signal's number.
    """
    if wanted := os.environ.get(COMPLETE):
        sys.exit(shell_complete(typer.main.get_command(app), {}, "fedlsg", COMPLETE, wanted))
    # saves half a second: no search for cycles in objects that are freed at exit
    atexit.register(gc.freeze)
    try:
        with without_exit():
            status = app(standalone_mode=False)
    except click.ClickException as error:
        said = error.format_message().rstrip(".")
        fail(f"{said}{option_hint(error)}{elsewhere(said)}", error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        fail(INTERRUPTED, signals.status())
    except SystemExit as end:
        # rich's answer to a closed pipe, as `| head` leaves it: the reader has what it wanted
        if isinstance(end.__context__, BrokenPipeError):
            sys.exit(end.code)
        fail(INTERRUPTED, int(end.code or 0))
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        if os.environ.get(VARIABLE) == FULL:
            traceback.print_exception(error)
        fail(f"{last_words(error)}{elsewhere(str(error))}", 1)
    if status == ABORTED or signals.received():
        fail(INTERRUPTED, signals.status())
    sys.exit(status if isinstance(status, int) else 0)


def fail(text: str, status: int) -> None:
    """Print one line (broken between words on a terminal) and leave.

    After a signal the line says "interrupted", whatever error a library made of the signal.
    """
    ended = signals.received()
    if ended:
        text, status = INTERRUPTED, signals.status()
    line = f"fedlsg: error: {' '.join(text.split())}"
    try:
        errors.show_cursor()  # a live line that was cut off had hidden it
        errors.print(
            line, style="red", markup=False, highlight=False, soft_wrap=not errors.is_terminal
        )
    except OSError:  # the terminal is gone: else Python fails at exit, with a status of its own
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
    if ended:
        signals.mark_said()
    sys.exit(status)
