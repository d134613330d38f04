"""One check of all cells before the first one starts: what a cell cannot do is found now, not an hour later."""

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from fedlsg.user_code.failure import without_exit
from simulations.compare.cells.grid import Cell
from simulations.plan.base import Base
from simulations.plan.plan import count_blocks
from simulations.plan.prepare import prepare
from simulations.settings.checks import idle
from simulations.settings.settings import Settings, from_mapping, names_given
from simulations.workloads import LoadedWorkload, Options

NAMED = 3
"""So many cells are named for each reason."""


def check_cells(cells: Iterable[Cell]) -> None:
    """Raise ValueError that names the cells that cannot run, and why, or a setting that does nothing in any cell.

    Nothing is written or charged.

    Each cell is prepared as its run prepares it: settings, data, partition, method, and the model on the CPU. Cells
    that differ in their seed are checked once. Not found here: an epsilon that no noise reaches, too little memory, a
    loss that diverges, and errors of a user's code, whose traceback is in the log of its cell.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(repr({**cell.given, "seed": None}), []).append(cell)
    check = _Check()
    refused: dict[str, list[str]] = {}
    for alike in groups.values():
        if (reason := check.reason(alike[0].given)) is not None:
            refused.setdefault(reason, []).extend(cell.name for cell in alike)
    for name in set.intersection(*(set(found) for found in check.idle)) if check.idle and not refused else ():
        raise ValueError(f"in every cell, {check.idle[0][name]}")
    if refused:
        count, every = (sum(map(len, group)) for group in (refused.values(), groups.values()))
        reasons = "; ".join(f"{_some(names)}: {reason}" for reason, names in refused.items())
        raise ValueError(f"{count} of {every} cells cannot run, so none was started: {reasons}")


class _Check:
    """Prepares cells one after the other. Data that the next cell needs are kept, and models are checked once.

    ``idle``: for each cell, its settings without effect.
    """

    def __init__(self) -> None:
        self.data: tuple[Any, LoadedWorkload] | None = None
        self.models: set[Any] = set()
        self.idle: list[dict[str, str]] = []

    def reason(self, given: Any) -> str | None:
        """Why these settings cannot run; None if they can."""
        try:
            with without_exit():
                base = self._prepare(from_mapping(given))
                self.idle.append(idle(base.settings, base.method, names_given(given)))
        except (ValueError, OSError, ImportError) as error:
            return " ".join(str(error).split())
        except Exception:  # of a user's code: its cell reports it, with a traceback in its log
            return None
        return None

    def _prepare(self, settings: Settings) -> Base:
        names = [*(field.name for field in fields(Options)), "workload", "data_dir", "public_rows", "normalise"]
        key = tuple(str(getattr(settings, name)) for name in names)
        kept = self.data[1] if self.data is not None and self.data[0] == key else None
        base = prepare(settings, loaded=kept)
        self.data = (key, base.workload)
        model = (key, base.settings.method, base.settings.model, repr(base.method.carrier), base.method.mechanism.clips)
        if model not in self.models:
            self._check_model(base)
            self.models.add(model)
        return base

    def _check_model(self, base: Base) -> None:
        count_blocks(replace(base, settings=replace(base.settings, device="cpu")))


def _some(names: list[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
