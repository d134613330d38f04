"""The command line: ``fedlsg run``, ``resume``, ``compare``, ``report``, ``calibrate``."""

import atexit
import gc
import sys
from typing import Annotated, Any

import click
import typer
import typer.core
from click.core import ParameterSource
from rich.console import Console

typer.core.HAS_RICH = False  # else it escapes brackets for rich in help that is printed plainly: "\\[required]"

app = typer.Typer(
    help="Federated learning whose updates are private, small and tested.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)
INTERRUPTED = 130
LINK = "Seconds of transfer on broadband, mobile, datacentre or UP/DOWN/LATENCY (Mbit/s, Mbit/s, ms)."


def option(*names: str, help: str, metavar: str | None = None) -> Any:
    """An option whose own help says its default, in words that also cover what a workload decides."""
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


Choice = Annotated[list[str] | None, option("-c", metavar="KEY=VALUE", help="Any other setting; repeatable.")]


@app.command()
def run(
    workload: Annotated[
        str | None,
        typer.Argument(help="digits (default), cifar10, glue-sst2, hf-image, ...; docs/methods.md lists all."),
    ] = None,
    method: Annotated[str | None, option(help="Recipe, default lsg; docs/methods.md lists all.")] = None,
    preset: Annotated[str | None, option(help="A paper's row, see fedlsg presets; options override it.")] = None,
    rank: Annotated[int | None, option(help="Rank r of the carriers.")] = None,
    sparsity: Annotated[float | None, option(help="Share p of units or coordinates that is frozen.")] = None,
    epsilon: Annotated[float | None, option(help="Privacy budget of each client; calibrates the noise.")] = None,
    noise_multiplier: Annotated[float | None, option(help="Noise over clip norm, instead of a target.")] = None,
    rounds: Annotated[int | None, option(help="Server rounds.")] = None,
    clients: Annotated[int | None, option(help="Clients that the data is partitioned over.")] = None,
    clients_per_round: Annotated[int | None, option(help="Clients asked each round; default all.")] = None,
    local_steps: Annotated[int | None, option(help="Private steps a client takes each round.")] = None,
    engine: Annotated[str, option(help="flower (Flower on Ray, default) or local (one process).")] = "flower",
    device: Annotated[str, option(help="cpu (default) or cuda.")] = "cpu",
    seed: Annotated[int, option(help="Public seed, default 0: initial weights, partition, carriers, masks.")] = 0,
    reproducible: Annotated[bool, option("--reproducible", help="Seed the noise too: NOT PRIVATE.")] = False,
    codec: Annotated[str, option(help="float32 (default), float16, bfloat16, int8, noise-floor, sign.")] = "float32",
    downlink: Annotated[
        str, option(help="full (default): weights; sparse: the updates that a client missed.")
    ] = "full",
    out: Annotated[str | None, option(help="Run directory; default runs/<time>-<workload>-<method>.")] = None,
    data_dir: Annotated[str | None, option(help="Local mirror of the data; default FEDLSG_DATA, then the hub.")] = None,
    record_updates: Annotated[bool, option("--record-updates", help="Keep every payload in updates/.")] = False,
    config: Choice = None,
) -> None:
    """Train WORKLOAD across clients and leave a run directory.

    WORKLOAD is digits (default), cifar10, glue-sst2, hf-image, ...; docs/methods.md lists all.
    """
    given = {key: value for key, value in locals().items() if key not in ("out", "config") and value is not None}
    from simulations.engines import ahead
    from simulations.published import resolve
    from simulations.settings import from_mapping

    given = merge(given, config or [])
    settings = from_mapping(resolve(given))  # what is wrong by itself is said before anything is imported or started
    with ahead(settings.engine):
        from simulations.commands import run_command

        run_command(given, out, console)


@app.command()
def resume(directory: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")]) -> None:
    """Continue an interrupted run from its last finished round."""
    from simulations.commands import resume_command

    resume_command(directory, console)


@app.command()
def compare(
    workload: Annotated[str | None, typer.Argument(help="As in fedlsg run; default digits.")] = None,
    methods: Annotated[str | None, option(help="Recipes with commas, or all.")] = None,
    epsilons: Annotated[str | None, option(help="Targets, as 1,3,8; default the workload's.")] = None,
    seeds: Annotated[int | None, option(help="How many, from 0; default 1.")] = None,
    ranks: Annotated[str | None, option(help="For the methods that have a rank.")] = None,
    sparsities: Annotated[str | None, option(help="For the methods that have a sparsity.")] = None,
    grid: Annotated[str | None, option(help="TOML file of a grid; options replace what it says.")] = None,
    budget_minutes: Annotated[float | None, option(help="Start no run after this time.")] = None,
    jobs: Annotated[int, option(help="Runs at a time; default 1.")] = 1,
    engine: Annotated[str | None, option(help="local (default) or flower.")] = None,
    axis: Annotated[str | None, option(help="epsilon (default), or bytes: accuracy against all bytes.")] = None,
    link: Annotated[str | None, option(help=LINK)] = None,
    out: Annotated[str | None, option(help="Folder; default runs/compare-WORKLOAD.")] = None,
    data_dir: Annotated[str | None, option(help="Local mirror of the data.")] = None,
    config: Annotated[
        list[str] | None,
        option("-c", metavar="KEY=VALUE", help="Setting of every method; METHOD.KEY=VALUE of one. Repeatable."),
    ] = None,
) -> int:
    """Run or resume methods x epsilons x ranks x sparsities x seeds; leave one table, plots and report.html."""
    axes = {name: value for name, value in locals().items() if name in ("methods", "epsilons", "ranks", "sparsities")}
    places = {"engine": engine, "data_dir": data_dir}
    from simulations.compare.commands import compare_command, make_grid
    from simulations.compare.view import make_view

    view = make_view(axis, link)
    pairs = merge({name: value for name, value in places.items() if value is not None}, config or [])
    made = make_grid(workload, {**axes, "seeds": seeds}, pairs, grid)
    return compare_command(made, out, jobs=jobs, budget_minutes=budget_minutes, console=console, view=view)


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run directories, or folders of a comparison.")],
    axis: Annotated[str | None, option(help="epsilon (default), or bytes: accuracy against all bytes.")] = None,
    link: Annotated[str | None, option(help=LINK)] = None,
    out: Annotated[str | None, option(help="Folder; default runs/<time>-report, or a single run's.")] = None,
) -> None:
    """Table, plots and report.html from existing runs.

    RUN is a run directory, or the folder of a comparison, which stands for all of its runs.
    """
    from simulations.compare.commands import report_command
    from simulations.compare.view import make_view

    report_command(runs, out, console, make_view(axis, link))


@app.command()
def calibrate(
    epsilon: Annotated[float | None, option(help="Target; gives the noise multiplier.")] = None,
    noise_multiplier: Annotated[float | None, option(help="Given instead; gives epsilon.")] = None,
    delta: Annotated[float, option(help="delta of (epsilon, delta); default 1e-5.")] = 1e-5,
    sample_rate: Annotated[float, option(help="Poisson rate q; default 0.01.")] = 0.01,
    steps: Annotated[int, option(help="Number of private steps; default 1000.")] = 1000,
) -> None:
    """Noise multiplier for a target epsilon, or epsilon of a noise multiplier, by both accountants."""
    from simulations.commands import calibrate_command

    calibrate_command(epsilon, noise_multiplier, delta, sample_rate, steps, console)


@app.command()
def partition(
    workload: Annotated[str, typer.Argument(help="As in run; default digits.", show_default=False)] = "digits",
    clients: Annotated[int | None, option(help="Clients that the data is partitioned over.")] = None,
    seed: Annotated[int, option(help="Public seed of the partition; default 0.")] = 0,
    data_dir: Annotated[str | None, option(help="Local mirror of the data; as in run.")] = None,
    out: Annotated[str | None, option(help="Directory for partition.csv and partition.png.")] = None,
    config: Choice = None,
) -> None:
    """Sizes and class balance of the clients that a run would have; trains nothing. Simulation only."""
    given = {key: value for key, value in locals().items() if key not in ("out", "config") and value is not None}
    from simulations.partition_report import partition_command

    partition_command(merge(given, config or []), out, console)


@app.command()
def presets(
    words: Annotated[str | None, typer.Argument(metavar="[NAME|WORDS]", help="A preset, or words to list by.")] = None,
    json: Annotated[bool, option("--json", help="Every setting, for programs.")] = False,
    markdown: Annotated[bool, option("--markdown", help="The page docs/presets.md.")] = False,
) -> None:
    """The papers' settings by name, beside the papers' accuracy: what run --preset takes."""
    from simulations.published.show import presets_command

    presets_command(words or "", json, markdown, console)


@app.command()
def inspect(
    directory: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Run directory; or --workload without a run.")
    ] = None,
    workload: Annotated[str | None, option(help="Instead of a run: this one at its initial weights.")] = None,
    method: Annotated[str | None, option(help="With --workload: the recipe; default lsg.")] = None,
    rank: Annotated[int | None, option(help="With --workload: rank r of the carriers.")] = None,
    examples: Annotated[int, option(help="Rows of the training data that are read; default 512.")] = 512,
    sparsities: Annotated[str | None, option(help="Shares p to compare; default 0,0.1,0.3,0.5,0.7,0.9.")] = None,
    ranks: Annotated[str | None, option(help="Ranks of the residuals; default powers of two.")] = None,
    layer: Annotated[list[str] | None, option(help="Layer with an intensity map; repeatable.")] = None,
    out: Annotated[str | None, option(help="Directory; default inspection/ in the run.")] = None,
    config: Choice = None,
) -> None:
    """Gradient statistics that the papers show: NOT PRIVATE, for simulations only."""
    named = {"workload": workload, "method": method, "rank": rank}
    given = merge({key: value for key, value in named.items() if value is not None}, config or [])
    if directory is None and workload is None:
        raise ValueError("expected a run directory, or --workload")
    from simulations.inspect_command import inspect_command

    inspect_command(
        directory, given, console, out=out, examples=examples, sparsities=sparsities, ranks=ranks, layers=layer or []
    )


@app.command()
def audit(
    directory: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Run directory; without one, the options below.")
    ] = None,
    workload: Annotated[str | None, option(help="Without a run: as in fedlsg run, default digits.")] = None,
    method: Annotated[str | None, option(help="Without a run: the recipe; default lsg.")] = None,
    epsilon: Annotated[float | None, option(help="Without a run: the claim; default the workload's.")] = None,
    noise_multiplier: Annotated[float | None, option(help="Without a run: noise over clip norm, instead.")] = None,
    mode: Annotated[str, option(help="unit (canary gradients; default) or training (canary examples).")] = "unit",
    canaries: Annotated[int | None, option(help="How many; default 5000 in unit mode, 300 in training.")] = None,
    canary_kind: Annotated[
        str | None, option(help="In training mode: mislabelled, noise, two-tone or checkerboard.")
    ] = None,
    plant: Annotated[str | None, option(help="Plant a mistake, such as halved-noise or per-block-clip.")] = None,
    seed: Annotated[int | None, option(help="Repeats the audit's coins and noise; default fresh ones.")] = None,
    out: Annotated[str | None, option(help="File; default audit.json, in the run where there is one.")] = None,
    config: Choice = None,
) -> int:
    """Try to falsify a claimed epsilon: status 0 and "not falsified", or status 1 and "falsified"."""
    named = {"workload": workload, "method": method, "epsilon": epsilon, "noise_multiplier": noise_multiplier}
    given = merge({key: value for key, value in named.items() if value is not None}, config or [])
    from simulations.audit_command import audit_command

    return audit_command(
        directory,
        given,
        console,
        mode=mode,
        canaries=canaries,
        canary_kind=canary_kind,
        plant=plant,
        seed=seed,
        out=out,
    )


@app.command()
def attack(
    context: typer.Context,
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN...]", help="Runs with recorded updates.")] = None,
    compare: Annotated[str | None, option(help="Instead: record and attack these recipes at equal sigma.")] = None,
    membership: Annotated[
        bool, option("--membership", help="Instead: who was trained on? Trains shadows of a RUN, or of settings.")
    ] = False,
    shadows: Annotated[int | None, option(help="With --membership: shadow models, even, default 16.")] = None,
    workload: Annotated[
        str | None, option(help="With --compare, --membership: as in fedlsg run, default digits.")
    ] = None,
    method: Annotated[str | None, option(help="With --membership, without a run: the recipe; default lsg.")] = None,
    epsilon: Annotated[float | None, option(help="As --method: default the workload's.")] = None,
    noise_multiplier: Annotated[float | None, option(help="As --method: noise over clip norm, instead.")] = None,
    view: Annotated[str, option(help="client (each payload, default) or aggregate (their sum).")] = "client",
    labels: Annotated[str, option(help="known (default) or unknown to the adversary.")] = "known",
    examples: Annotated[str, option(help="known (default) or unknown: how many are in the batch.")] = "known",
    batch: Annotated[str, option(help="Batch sizes that are attacked, default 1.")] = "1",
    images: Annotated[int, option(help="Images or texts of each batch size, default 8.")] = 8,
    attacks: Annotated[
        str | None, option(help="With commas, see docs/attacks.md; default the strongest that fit.")
    ] = None,
    naive: Annotated[bool, option("--naive", help="Also attacks that ignore projection, mask and clip.")] = False,
    seconds: Annotated[float, option(help="Budget of one attack on one update, default 20.")] = 20.0,
    seed: Annotated[int, option(help="Of the attacks' starting points, default 0.")] = 0,
    out: Annotated[str | None, option(help="Folder; default the run, or attack/ for several.")] = None,
    config: Choice = None,
) -> None:
    """What an adversary gets from the updates that runs recorded (fedlsg run --record-updates).

    With --membership: from a trained model, by models trained with the same settings.
    """
    from fedlsg.attacks.observation import ThreatModel
    from simulations.attack_command import attack_command

    named = {"workload": workload, "method": method, "epsilon": epsilon, "noise_multiplier": noise_multiplier}
    given = merge({key: value for key, value in named.items() if value is not None}, config or [])
    asked = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if membership:
        from simulations.attack.membership_command import membership_command, only

        run = only(runs or [], asked)
        return membership_command(run, given, console, shadows=shadows, seed=seed, out=out)
    if alone := sorted(asked & {"shadows", "method", "epsilon", "noise_multiplier"}):
        raise ValueError(f"--{alone[0].replace('_', '-')} belongs to --membership: add that, or leave it out")
    threat = ThreatModel(view=view, labels=labels, examples=examples)  # type: ignore[arg-type]
    attack_command(
        runs or [], console, compare=compare, given=given, threat=threat, batches=batch, images=images, attacks=attacks,
        naive=naive, seconds=seconds, seed=seed, out=out,
    )  # fmt: skip


def merge(given: dict[str, Any], pairs: list[str]) -> dict[str, Any]:
    """Options and ``-c key=value`` pairs in one mapping. Raises ValueError for a pair without "="."""
    merged = dict(given)
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ValueError(f"expected -c KEY=VALUE, got {pair!r}")
        merged[key.strip().replace("-", "_")] = value.strip()
    return merged


def main() -> None:
    """Entry point: every expected failure is one line on stderr and an exit status that is not 0."""
    atexit.register(gc.freeze)  # half a second at exit: what is about to be freed is not searched for cycles first
    try:
        status = app(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        errors.print(error.format_message(), markup=False, highlight=False)
        sys.exit(2)
    except click.ClickException as error:
        fail(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        fail("interrupted", INTERRUPTED)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        fail(str(error), 1)
    if status == INTERRUPTED:  # typer's word for Ctrl-C
        fail("interrupted", INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def fail(text: str, status: int) -> None:
    """Print one line and leave."""
    errors.print(f"fedlsg: error: {' '.join(text.split())}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(status)
