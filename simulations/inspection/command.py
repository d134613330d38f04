"""``fedlsg inspect``: gradient statistics that the papers show, of a run or of a method before any training.

For simulations only: it reads gradients of the training data without noise, and what it writes is not private. It opens
no ledger and changes no file that a run reads.
"""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from simulations.compare.cells.grid_file import numbers
from simulations.inspection.measure import inspect
from simulations.inspection.output import WARNING, first_factors, folder, lead, resolve_layer, write
from simulations.inspection.subject import subject_of_run, subject_of_settings
from simulations.inspection.tables import clip_table, energy_table, layer_table, shown_sparsity
from simulations.report.terminal import print_table

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
) -> None:
    """Measure, print and write. ``given`` are settings of a run that does not exist, where ``run`` is None.

    Raises ValueError for settings next to a run, for a list without numbers, and as reading a run directory does.
    """
    if run is not None and given:
        raise ValueError(f"a run has its settings; leave out {', '.join(sorted(given))}, or the run")
    wanted = SPARSITIES if sparsities is None else numbers("--sparsities", sparsities, float)
    several = None if ranks is None else sorted(set(numbers("--ranks", ranks, int)))
    console.print(WARNING, style="bold red", highlight=False, soft_wrap=True)
    with console.status("loading data") as status:
        if run is not None:
            subject = subject_of_run(run, progress=status.update)
        else:
            subject = subject_of_settings(given, progress=status.update)
        path = folder(subject, out)
        for name in layers:
            resolve_layer(subject, name)
        status.update("measuring gradients")
        measured = sorted({*wanted, shown_sparsity(subject)})
        found = inspect(subject, examples=examples, sparsities=measured, ranks=several)
        status.update("drawing")
        write(subject, found, path, layers)
    console.print(lead(subject, found), highlight=False, markup=False, soft_wrap=True)
    for table in (layer_table(subject, found), energy_table(subject, found), clip_table(found)):
        print_table(table, console)
    for name, factors in first_factors(found).items():
        text = ", ".join(f"{factor:.4f}" for factor in factors)
        console.print(f"clip factors, {name}: {text}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"[bold]written[/bold]  {escape(str(path))}/inspection.html", highlight=False, soft_wrap=True)
