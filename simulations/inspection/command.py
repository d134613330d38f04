"""``fedlsg inspect``: gradient statistics that the papers show, of a run or of a method before any training.

For simulations only: it reads gradients of the training data without noise, and what it writes is not private. It opens
no ledger and changes no file that a run reads.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape

from simulations.compare.cells.grid_file import numbers
from simulations.inspection.energy import kept_rows, layer_tables, summary_table
from simulations.inspection.measure import SOURCES, Inspection, inspect
from simulations.inspection.output import WARNING, first_factors, folder, lead, resolve_layer, write
from simulations.inspection.recorded import rounds_of
from simulations.inspection.retrain import diagnosis, finished, measure_costs
from simulations.inspection.sparsified_figures import page_tables
from simulations.inspection.subject import Subject, refuse_settings, subject_of_run, subject_of_settings
from simulations.report.page import Row, RowKind, Table
from simulations.report.terminal import checked, print_line, print_table
from simulations.rundir.examined import RECORD, STATE
from simulations.settings.run import Device

SPARSITIES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
SHOWN_SPARSITY = 0.3
"""Sparsity of the energies that are shown if the method itself freezes no units."""
SHOWN_RANK = 8
"""Rank of the residuals that are shown, at most, if the method itself has none."""
CHOICES = ("top", "bottom", "random")


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
    kept = [summary_table(found.kept), *layer_tables(found.kept)] if found.kept else []
    masked = () if found.sparsified is None else page_tables(found.sparsified)
    for table in (*kept, *masked, layer_table(subject, found), energy_table(subject, found), clip_table(found)):
        print_table(table, console)
    for name, factors in first_factors(found).items():
        text = ", ".join(f"{factor:.4f}" for factor in factors)
        console.print(
            f"clip factors of the first examples (1: not clipped), {name}: {text}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    if found.costs is not None:
        print_line(diagnosis(found.costs), console, "bold")
    console.print(f"[bold]written[/bold]  {escape(str(path))}/inspection.html", highlight=False, soft_wrap=True)


def shown_sparsity(subject: Subject) -> float:
    """The sparsity of the energies that are shown: that of the method if it freezes units."""
    mask = subject.base.method.mask
    return mask.sparsity if mask.units and mask.sparsity else SHOWN_SPARSITY


def layer_table(subject: Subject, found: Inspection) -> Table:
    """A row for each layer: stable rank, and residuals at the rank of the method by source."""
    ranks = sorted({row.rank for row in found.residuals})
    own = subject.base.method.carrier.rank
    rank = own if own in ranks else max((r for r in ranks if r <= SHOWN_RANK), default=ranks[0] if ranks else 0)
    lost = {(row.layer, row.source): row.residual for row in found.residuals if row.rank == rank}
    sources = [source for source in SOURCES if any(row.source == source for row in found.residuals)]
    return Table(
        title=f"Share of the length of the batch gradient that carriers of rank {rank} lose, by the source of carriers",
        columns=("layer", "shape", "stable rank", *sources),
        rows=tuple(
            Row(
                cells=(
                    _name(row.layer),
                    f"{row.shape[0]}x{row.shape[1]}",
                    _cell(row.stable_rank),
                    *(_cell(lost.get((row.layer, source))) for source in sources),
                ),
                style=_style(row.treated),
            )
            for row in found.layers
        ),
    )


def energy_table(subject: Subject, found: Inspection) -> Table:
    """A row for each layer: energy of its gradient in the units that LSG keeps at the sparsity, and in others."""
    p = shown_sparsity(subject)
    kept = {(row.layer, row.choice): row for row in found.energies if row.sparsity == p}
    return Table(
        title=f"Share of the energy of the batch gradient in kept out units and in units, p = {p:g}",
        columns=("layer", *(f"{choice} {side}" for choice in CHOICES for side in ("out", "in"))),
        rows=tuple(
            Row(
                cells=(
                    _name(row.layer),
                    *(
                        _cell(share)
                        for choice in CHOICES
                        for share in (kept[row.layer, choice].rows, kept[row.layer, choice].columns)
                    ),
                ),
                style=_style(row.treated),
            )
            for row in found.layers
        ),
    )


def clip_table(found: Inspection) -> Table:
    """A row for each mask: how many examples are clipped, and the norms; the run's own mask first."""
    return Table(
        title="What the clip does to single examples",
        columns=("kept", "p", "values", "clipped", "mean factor", "median norm", "95 % norm", "largest"),
        rows=tuple(
            Row(
                cells=(
                    f"{row.choice}{' (the run)' if row is found.own else ''}",
                    f"{row.sparsity:g}",
                    f"{row.kept:,}",
                    f"{100 * row.clipping.clipped:.1f} %",
                    f"{row.clipping.mean_factor:.3f}",
                    *(f"{row.clipping.norms[level]:.3g}" for level in (0.5, 0.95, 1.0)),
                ),
                style="own" if row is found.own else "",
            )
            for row in (found.own, *found.clips)
        ),
    )


def _name(layer: str) -> str:
    return layer.removesuffix(".weight")


def _style(treated: str) -> RowKind:
    return "" if treated == "carried" else "dim"


def _cell(value: float | None) -> str:
    return "--" if value is None or math.isnan(value) else f"{value:.2f}"
