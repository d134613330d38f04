"""``fedlsg inspect``: gradient statistics that the papers show, of a run or of a method before any training.

For simulations only: it reads un-noised gradients of the training data, and what it writes is not private. It opens no
ledger and changes no file that a run reads.
"""

import math
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from simulations.inspection.measure import SOURCES, Inspection, inspect
from simulations.inspection.output import WARNING, folder, lead, printed, resolve_layer, write
from simulations.inspection.subject import Subject, subject_of_run, subject_of_settings

SPARSITIES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
SHOWN_SPARSITY = 0.3
"""Of the energies on the terminal, where the method freezes no units itself."""
CHOICES = ("top", "bottom", "random")
LOOK: Any = {"box": SIMPLE_HEAD, "pad_edge": False, "title_justify": "left", "title_style": "bold"}


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

    Raises ValueError for settings beside a run, lists that are none, and whatever a run directory raises.
    """
    if run is not None and given:
        raise ValueError(f"a run has its settings; leave out {', '.join(sorted(given))}, or the run")
    wanted = SPARSITIES if sparsities is None else numbers_of("sparsities", sparsities, float)
    several = None if ranks is None else [int(rank) for rank in numbers_of("ranks", ranks, int)]
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
        found = inspect(subject, examples=examples, sparsities=shown_also(subject, wanted), ranks=several)
        status.update("drawing")
        write(subject, found, path, layers)
    console.print(lead(subject, found), highlight=False, markup=False, soft_wrap=True)
    console.print(layer_table(subject, found))
    console.print(energy_table(subject, found))
    console.print(clip_table(found))
    for name, factors in printed(found).items():
        text = ", ".join(f"{factor:.4f}" for factor in factors)
        console.print(f"clip factors, {name}: {text}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"[bold]written[/bold]  {escape(str(path))}/inspection.html", highlight=False, soft_wrap=True)


def numbers_of(name: str, text: str, kind: type) -> list[float]:
    """Numbers from a list with commas, ascending and without repeats. Raises ValueError for anything else."""
    try:
        return sorted({kind(word) for word in text.split(",")})
    except ValueError:
        raise ValueError(f"expected --{name} as numbers with commas between, got {text!r}") from None


def shown_also(subject: Subject, sparsities: Sequence[float]) -> list[float]:
    """The sparsities and the method's own, so that the tables have it."""
    return sorted({*sparsities, shown_sparsity(subject)})


def shown_sparsity(subject: Subject) -> float:
    """The sparsity whose energies go on the terminal: the method's, if it freezes units."""
    mask = subject.base.method.mask
    return mask.sparsity if mask.kind == "units" and mask.sparsity else SHOWN_SPARSITY


def layer_table(subject: Subject, found: Inspection) -> Table:
    """A row a layer: stable rank, and residuals at the method's rank by source."""
    ranks = sorted({row.rank for row in found.residuals})
    own = subject.base.method.carrier.rank
    rank = own if own in ranks else max((r for r in ranks if r <= 8), default=ranks[0] if ranks else 0)
    lost = {(row.layer, row.source): row.residual for row in found.residuals if row.rank == rank}
    sources = [source for source in SOURCES if any(row.source == source for row in found.residuals)]
    view = Table(title=f"length of the batch gradient that carriers of rank {rank} lose, by their source", **LOOK)
    view.add_column("layer", overflow="fold")
    for name in ("shape", "stable rank", *sources):
        view.add_column(name, justify="right")
    for row in found.layers:
        residuals = (_cell(lost.get((row.layer, source))) for source in sources)
        style = None if row.treated == "carried" else "dim"
        shape = f"{row.shape[0]}x{row.shape[1]}"
        view.add_row(escape(row.layer.removesuffix(".weight")), shape, _cell(row.stable_rank), *residuals, style=style)
    return view


def energy_table(subject: Subject, found: Inspection) -> Table:
    """A row a layer: energy of its gradient in the units that LSG keeps at the method's sparsity, and in others."""
    p = shown_sparsity(subject)
    kept = {(row.layer, row.choice): row for row in found.energies if row.sparsity == p}
    view = Table(title=f"energy of the batch gradient in kept units, p = {p:g}: out units, in units", **LOOK)
    view.add_column("layer", overflow="fold")
    for choice in CHOICES:
        view.add_column(choice, justify="right")
    for row in found.layers:
        cells = (f"{_cell(kept[row.layer, c].rows)}  {_cell(kept[row.layer, c].columns)}" for c in CHOICES)
        view.add_row(
            escape(row.layer.removesuffix(".weight")), *cells, style=None if row.treated == "carried" else "dim"
        )
    return view


def clip_table(found: Inspection) -> Table:
    """A row a mask: how many examples are clipped, and the norms."""
    view = Table(title="what the clip does to single examples", **LOOK)
    for name in ("kept", "p", "values", "clipped", "mean factor", "median norm", "95 % norm", "largest"):
        view.add_column(name, justify="left" if name == "kept" else "right")
    for index, row in enumerate([found.own, *found.clips]):
        measured = row.clipping
        view.add_row(
            f"{row.choice}{' (the run)' if index == 0 else ''}",
            f"{row.sparsity:g}",
            f"{row.kept:,}",
            f"{100 * measured.clipped:.1f} %",
            f"{measured.mean_factor:.3f}",
            *(f"{measured.norms[level]:.3g}" for level in (0.5, 0.95, 1.0)),
            style="bold" if index == 0 else None,
        )
    return view


def _cell(value: float | None) -> str:
    return "--" if value is None or math.isnan(value) else f"{value:.2f}"
