"""The command ``fedlsg inspect``: gradient statistics as in the papers, of a run or of settings.

For simulations only: it reads gradients of the training data without noise, and what it writes is
not private. It opens no ledger and changes no file that a run reads. With ``--noiseless`` it trains
the run twice more, with the clip alone and without clip and noise: the differences in accuracy are
what noise and clip cost.
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

DEFAULT_SPARSITIES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)


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
    """Measure, write the page and print its tables.

    run: the directory of a run; None: ``given`` are settings, and nothing has been trained.
    out: the folder of the page; None: that of the run, or one named after the settings.
    examples: how many training examples are read.
    sparsities: numbers with commas; None: DEFAULT_SPARSITIES.
    ranks: numbers with commas; None: powers of two, and that of the method.
    layers: names of layers that get figures of their own.
    energy: rounds, in which carriers of all kinds are compared; None: no comparison.
    noiseless: also train the run twice more, see ``measure_costs``.
    device: of the measurements.

    Raises ValueError for settings next to a run, for a list without numbers, and as reading a run
    directory does.
    """
    refuse_settings(run, given)
    sparsities_given = (
        DEFAULT_SPARSITIES if sparsities is None else numbers("--sparsities", sparsities, float)
    )
    ranks_given = None if ranks is None else sorted(set(numbers("--ranks", ranks, int)))
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
            finished_result(subject)  # refuse now, and not after all measurements
        status.update("measuring gradients")
        measured = sorted({*sparsities_given, shown_sparsity(subject)})
        inspection = inspect(subject, examples=examples, sparsities=measured, ranks=ranks_given)
        if rounds:
            status.update("measuring carriers")
            kept = kept_rows(subject, subject.rows(examples), rounds, ranks_given)
            inspection = replace(inspection, kept=kept)
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


NOT_REPEATED = {"epsilon", "noise_multiplier", "downlink", "downlink_codec", "run_dir"}
"""Settings of the run that make no sense without noise, or name its directory."""


def measure_costs(subject: Subject, console: Console) -> Costs:
    """Train twice more in this process: with the clip alone, and without clip and noise.

    Seed, rounds and rates are those of the run, values are sent as float32, and no file is kept.
    Raises ValueError without a finished run with clip and noise that has an accuracy.
    """
    result = finished_result(subject)
    settings = subject.base.settings
    seconds = duration(float(result.summary["wall_seconds"]))
    console.print(
        f"training twice more, each about as long as the run ({seconds})", highlight=False
    )
    rounds = subject.base.schedule.rounds
    with count_bar(console, "training, round", 2 * rounds) as tick:
        clip_only = final_accuracy(with_mechanism(settings, "clip-only"), tick)
        neither = final_accuracy(with_mechanism(settings, "none"), tick)
    assert result.accuracy is not None
    error = None
    if result.chance is not None:
        error = standard_error([result.accuracy], result.chance)
        if neither is not None and not beats_chance([neither], result.chance):
            neither = None  # such a run learned nothing that noise or clip could cost
    return Costs(
        with_noise=result.accuracy,
        clip_only=clip_only,
        neither=neither,
        standard_error=error,
        rho=result.summary.get("rho"),
    )


def finished_result(subject: Subject) -> Result:
    """The results of the subject's run.

    Raises ValueError unless it is finished, has clip and noise, and has an accuracy.
    """
    if subject.run is None:
        raise ValueError(
            "--noiseless trains a finished run again: give the run directory, in place of "
            "--workload"
        )
    result = read_run(subject.run)
    mechanism = subject.base.method.mechanism
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


def with_mechanism(settings: Settings, kind: str) -> Settings:
    """The settings of the run with a mechanism without noise, on the local engine, reproducible."""
    dropped = NOT_REPEATED | codec_settings().keys()
    values = {name: value for name, value in values_of(settings).items() if name not in dropped}
    fixed = {
        "mechanism": kind,
        "codec": DEFAULT_CODEC,
        "engine": "local",
        "reproducible": True,
        "record_updates": False,
        "evaluate_every": 10**6,  # after the last round only
    }
    return from_values({**values, **fixed})


def final_accuracy(settings: Settings, tick: Any) -> float | None:
    """The accuracy after a run, whose folder is deleted; None if it diverged."""
    with run_in_scratch(ready_plan(settings), lambda row: tick()) as (_, summary):
        return None if summary["diverged"] else summary["accuracy"]
