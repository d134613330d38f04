"""``fedlsg inspect``: gradient statistics that the papers show, of a run or of a method before any
training.

For simulations only: it reads gradients of the training data without noise, and what it writes is
not private. It opens no ledger and changes no file that a run reads. ``--noiseless`` trains the run
again without noise, and without both, to say what noise and clip cost.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from fedlsg.payload import DEFAULT_CODEC
from fedlsg.simulations.compare.grid.grid_file import numbers
from fedlsg.simulations.inspection import (
    Costs,
    Subject,
    refuse_settings,
    run_in_scratch,
    subject_of_run,
    subject_of_settings,
)
from fedlsg.simulations.inspection.energy import kept_rows, rounds_of
from fedlsg.simulations.inspection.inspection_files import (
    WARNING,
    diagnosis,
    factor_words,
    folder,
    lead,
    resolve_layer,
    write,
)
from fedlsg.simulations.inspection.inspection_tables import shown_sparsity, shown_tables
from fedlsg.simulations.inspection.measure import inspect
from fedlsg.simulations.report.terminals.progress import count_bar
from fedlsg.simulations.report.terminals.terminal import (
    checked,
    print_line,
    print_table,
    print_whole,
    print_written,
)
from fedlsg.simulations.report.words import duration
from fedlsg.simulations.server.ready import ready_plan
from fedlsg.simulations.settings.any_run import Device
from fedlsg.simulations.settings.settings import Settings, codec_settings, from_values, values_of
from fedlsg.simulations.storage.examined import RECORD, STATE
from fedlsg.simulations.storage.results import Result, read_run
from fedlsg.simulations.workloads.base.split import beats_chance, standard_error

SPARSITIES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)


def inspect_command(
    run: str | None,
    given: dict[str, Any],
    console: Console,
    *,
    out: str | None = None,
    examples: int = 512,
    sparsities: str | None = None,
    ranks: str | None = None,
    layers: Sequence[str] = (),
    energy: str | None = None,
    noiseless: bool = False,
    device: Device = "auto",
) -> None:
    """Measure on ``device``, print and write. ``given``: settings of a run that does not exist,
    where ``run`` is None.

    ``energy``: rounds in which carriers of all kinds are compared. ``noiseless``: also train the
    run twice again, see ``measure_costs``.

    Raises ValueError for settings next to a run, for a list without numbers, and as reading a run
    directory does.
    """
    refuse_settings(run, given)
    wanted = SPARSITIES if sparsities is None else numbers("--sparsities", sparsities, float)
    several = None if ranks is None else sorted(set(numbers("--ranks", ranks, int)))
    print_line(WARNING, console, "bold red")
    if run is not None:
        checked(run, STATE if energy is None else RECORD, console)
    with console.status("loading data") as status:
        if run is not None:
            subject = subject_of_run(run, device=device, progress=status.update)
        else:
            subject = subject_of_settings({**given, "device": device}, progress=status.update)
        path = folder(subject, out)
        for name in layers:
            resolve_layer(subject, name)
        rounds = [] if energy is None else rounds_of(subject, energy)
        if noiseless:
            finished(subject)
        status.update("measuring gradients")
        measured = sorted({*wanted, shown_sparsity(subject)})
        inspection = inspect(subject, examples=examples, sparsities=measured, ranks=several)
        if rounds:
            status.update("measuring carriers")
            inspection = replace(
                inspection, kept=kept_rows(subject, subject.rows(examples), rounds, several)
            )
    if noiseless:
        inspection = replace(inspection, costs=measure_costs(subject, console))
    with console.status("drawing"):
        write(subject, inspection, path, layers)
    print_line(lead(subject, inspection), console)
    for table in shown_tables(subject, inspection):
        print_table(table, console)
    for name, factors in factor_words(inspection).items():
        print_whole(
            f"clip factors of the first examples (1: not clipped), {name}: {factors}", console
        )
    if inspection.costs is not None:
        print_line(diagnosis(inspection.costs), console, "bold")
    print_written(path, ("inspection.html",), console)


DROPPED = {"epsilon", "noise_multiplier", "downlink", "downlink_codec", "run_dir"}
"""Settings of the run that need noise, or a place."""


def measure_costs(subject: Subject, console: Console) -> Costs:
    """Train twice more on this process: same seed, rounds and rates, values as float32, nothing of
    it is kept.

    Raises ValueError without a finished run with clip and noise that has an accuracy.
    """
    result = finished(subject)
    settings = subject.base.settings
    seconds = duration(float(result.summary["wall_seconds"]))
    console.print(
        f"training twice more, each about as long as the run ({seconds})", highlight=False
    )
    rounds = subject.base.schedule.rounds
    with count_bar(console, "training, round", 2 * rounds) as tick:
        clip_only, neither = (
            accuracy(under(settings, kind), tick) for kind in ("clip-only", "none")
        )
    assert result.accuracy is not None
    if (
        neither is not None
        and result.chance is not None
        and not beats_chance([neither], result.chance)
    ):
        neither = None
    error = None if result.chance is None else standard_error([result.accuracy], result.chance)
    return Costs(
        with_noise=result.accuracy,
        clip_only=clip_only,
        neither=neither,
        standard_error=error,
        rho=result.summary.get("rho"),
    )


def finished(subject: Subject) -> Result:
    """The results of the subject's run. Raises ValueError, with the reason, for one whose noise has
    no known cost.
    """
    if subject.run is None:
        raise ValueError(
            "--noiseless trains a finished run again: give the run directory, in place of "
            "--workload"
        )
    result, mechanism = read_run(subject.run), subject.base.method.mechanism
    if not (mechanism.clips and mechanism.adds_noise):
        raise ValueError(
            "--noiseless needs a run with clip and noise, and this one has mechanism "
            f"{mechanism.kind!r}"
        )
    if not result.done or result.summary["stopped"]:
        raise ValueError(
            "--noiseless needs a run that trained to its last round: continue it with fedlsg "
            "resume first"
        )
    if result.accuracy is None:
        raise ValueError(
            f"--noiseless compares accuracies, and workload {result.settings['workload']} has none"
        )
    return result


def under(settings: Settings, kind: str) -> Settings:
    """The same run under a mechanism without noise, in one process; its batches repeat with the
    seed.
    """
    dropped = DROPPED | codec_settings().keys()
    values = {name: value for name, value in values_of(settings).items() if name not in dropped}
    fixed = {
        "mechanism": kind,
        "codec": DEFAULT_CODEC,
        "engine": "local",
        "reproducible": True,
        "record_updates": False,
        "evaluate_every": 10**6,
    }
    return from_values({**values, **fixed})


def accuracy(settings: Settings, tick: Any) -> float | None:
    """Final accuracy of a run in a folder that is deleted; None if it diverged."""
    with run_in_scratch(ready_plan(settings), lambda row: tick()) as (_, summary):
        return None if summary["diverged"] else summary["accuracy"]
