"""``fedlsg inspect``: gradient statistics that the papers show, of a run or of a method before any training.

For simulations only: it reads gradients of the training data without noise, and what it writes is not private. It opens
no ledger and changes no file that a run reads.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape

from simulations.compare.cells.grid_file import numbers
from simulations.inspection.energy import kept_rows
from simulations.inspection.kinds import rounds_of
from simulations.inspection.measure import inspect
from simulations.inspection.output import WARNING, first_factors, folder, lead, resolve_layer, write
from simulations.inspection.retrain import diagnosis, finished, measure_costs
from simulations.inspection.subject import refuse_settings, subject_of_run, subject_of_settings
from simulations.inspection.tables import shown_sparsity, shown_tables
from simulations.report.terminal import checked, print_line, print_table, print_whole
from simulations.rundir.examined import RECORD, STATE
from simulations.settings.run import Device

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
    """Measure on ``device``, print and write. ``given``: settings of a run that does not exist, where ``run`` is None.

    ``energy``: rounds in which carriers of all kinds are compared. ``noiseless``: also train the run twice again, see
    ``measure_costs``.

    Raises ValueError for settings next to a run, for a list without numbers, and as reading a run directory does.
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
        found = inspect(subject, examples=examples, sparsities=measured, ranks=several)
        if rounds:
            status.update("measuring carriers")
            found = replace(found, kept=kept_rows(subject, subject.rows(examples), rounds, several))
    if noiseless:
        found = replace(found, costs=measure_costs(subject, console))
    with console.status("drawing"):
        write(subject, found, path, layers)
    print_line(lead(subject, found), console)
    for table in shown_tables(subject, found):
        print_table(table, console)
    for name, factors in first_factors(found).items():
        text = ", ".join(f"{factor:.4f}" for factor in factors)
        print_whole(f"clip factors of the first examples (1: not clipped), {name}: {text}", console)
    if found.costs is not None:
        print_line(diagnosis(found.costs), console, "bold")
    console.print(f"[bold]written[/bold]  {escape(str(path))}/inspection.html", highlight=False, soft_wrap=True)
