"""``fedlsg.compare``: a grid of runs from Python; a frame of its lines, drawn in a notebook."""

import base64
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedlsg.method import Method
from fedlsg.randomness import alone
from fedlsg.simulations.compare.compare_command import folder_of, grid_of, run_grid
from fedlsg.simulations.compare.grid.cell_worker import Here, Worker
from fedlsg.simulations.compare.grid.grid_file import words
from fedlsg.simulations.compare.grid.runner import CELLS, Limits
from fedlsg.simulations.compare.results.bytes_axis import View
from fedlsg.simulations.compare.results.comparison_files import Comparison
from fedlsg.simulations.compare.results.comparison_table import (
    comparison_table,
    frame_of,
    sentences,
)
from fedlsg.simulations.compare.results.lines import full_labels
from fedlsg.simulations.compare.results.pandas_library import pd
from fedlsg.simulations.compare.results.plots import figures
from fedlsg.simulations.report.pages.figure import check_drawing, plot, png
from fedlsg.simulations.report.pages.template import notebook_table
from fedlsg.simulations.report.terminals.terminal import print_line, shown
from fedlsg.simulations.run.simulate import method_name, workload_name
from fedlsg.simulations.workloads import Workload
from fedlsg.user_code.failure import without_exit
from fedlsg.user_code.short_traceback import short_traceback

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 680
"""Of the figure in a notebook, in CSS pixels."""
FIGURE = "Accuracy (or loss) of each method"
Recipe = str | Callable[..., Method]
_COMPARED: dict[Path, list[weakref.ref[Any]]] = {}
"""The objects of this process that the runs of a folder were made with.

They are kept in memory, because objects cannot be recognised from files.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """A comparison and its results; a notebook shows its winner, its table and its figure.

    folder: holds the tables, the plots, ``report.html`` and every run.
    """

    folder: Path
    _made: Comparison

    @cached_property  # its results never change
    def frame(self) -> pd.DataFrame:
        """A row for each line of the table, which is the mean over its seeds: the columns of
        table.csv, shares in 0..1. NaN where a number is not known.
        """
        return frame_of(self._made.table)

    @cached_property  # its results never change
    def runs(self) -> pd.DataFrame:
        """A row for each run: the columns of results.csv."""
        rows = [result.as_row() for result in self._made.results]
        return pd.DataFrame(rows)

    @property
    def latex(self) -> str:
        """The table for a paper, as table.tex has it: mean ± standard deviation over seeds, in bold
        every mean that may be the best of its epsilon.
        """
        return self._made.files["table.tex"]

    def plot(self, name: str = "") -> "Figure":
        """A figure of matplotlib, by its name in ``plots/`` of the folder; default: the first one.

        A notebook's cell shows it, once. Raises ValueError for an unknown name, with the known
        ones, and where no run is finished.
        """
        return shown(self._figure(name))

    def _figure(self, name: str = "") -> "Figure":
        made = figures(self._made.table, self._made.view)
        if not made:
            raise ValueError(f"no run of {self.folder} is finished: there is nothing to draw")
        if (name := name or next(iter(made))) not in made:
            raise ValueError(f"unknown figure {name!r}; known: {', '.join(made)}")
        drawn = made[name]
        return plot(drawn) if isinstance(drawn, tuple) else drawn

    def __repr__(self) -> str:
        return "\n".join([*sentences(self._made.table), repr(self.frame), str(self.folder)])

    def _repr_html_(self) -> str:
        done = any(result.done for result in self._made.results)
        data = base64.b64encode(png(self._figure())).decode() if done else None
        image = None if data is None else (f"data:image/png;base64,{data}", FIGURE, WIDTH)
        said = sentences(self._made.table)
        return notebook_table(said, comparison_table(self._made.table), image)


def _folder_of_objects(workload: str, out: str | None, objects: Sequence[Any]) -> Path:
    """The folder of a comparison of objects: ``out``, or the usual one.

    A comparison continues only in the process that made it, with the same objects. Without ``out``,
    other objects have the first numbered folder (...-2, ...-3) that has no other runs.
    Raises ValueError if ``out`` has runs of other objects, or of another process.
    """
    usual = folder_of(workload, out)
    given = [each for each in objects if not isinstance(each, str)]
    folder, numbers = usual, count(2)
    while _has_others(folder, given):
        if out is not None:
            raise ValueError(
                f"{folder} has runs of other objects, or of an earlier process, and no file tells "
                "whether these are the same: give another out=, or leave it out for a numbered "
                "folder, or name the objects, as 'mine.py:workload'"
            )
        folder = usual.with_name(f"{usual.name}-{next(numbers)}")
    _COMPARED[folder] = [weakref.ref(each) for each in given]
    return folder


def _named_methods(
    methods: str | Sequence[Recipe] | Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, dict[str, Any]], list[Any]]:
    """The settings of each method by its label, and the recipes that are objects of this process.

    Raises ValueError for two methods of one label.
    """
    settings_of = methods if isinstance(methods, Mapping) else {}
    named: dict[str, dict[str, Any]] = {}
    recipes: list[Any] = []
    for method in words(methods) if isinstance(methods, str) else methods:
        own = dict(settings_of.get(method, {})) if isinstance(method, str) else {}
        recipes += [each for each in (method, own.get("method")) if callable(each)]
        if "method" in own:
            own["method"] = method_name(own["method"])
        label = method_name(method)
        if label in named:
            raise ValueError(f"two methods are called {label}: give them labels")
        named[label] = own
    return named, recipes


def _has_others(folder: Path, given: Sequence[Any]) -> bool:
    """Whether the runs of a folder may be of other objects than the ``given`` ones."""
    before = [known() for known in _COMPARED.get(folder, ())]
    same = len(before) == len(given) and all(map(is_, before, given))
    return (folder / CELLS).exists() and not same


@short_traceback
@alone()
@without_exit()
def compare(
    workload: str | Workload | Callable[[], Workload] = "digits",
    methods: str | Sequence[Recipe] | Mapping[str, Mapping[str, Any]] = (),
    *,
    epsilons: Sequence[float] = (),
    seeds: int | Sequence[int] = 1,
    ranks: Sequence[int] = (),
    sparsities: Sequence[float] = (),
    vary: Mapping[str, Sequence[Any]] | None = None,
    labels: Mapping[str, str] | None = None,
    jobs: int | None = None,
    budget_minutes: float | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Compared:
    """Run methods x epsilons x ranks x sparsities x varied settings x seeds, as ``fedlsg compare``
    does; a notebook shows the winner, the table and the figure of what it returns.

        made = fedlsg.compare("digits", ["lsg", "dpsgd"], epsilons=[1, 3], seeds=3)
        made.frame

    Its ``frame`` is a frame of pandas with a row for each line of the table and the columns of
    table.csv; ``runs`` has a row for each run, ``latex`` is the table for a paper, ``plot(name)`` a
    figure of ``plots/``, ``folder`` holds all of it.

    workload, settings: as in ``fedlsg.simulate``, for all runs. A ``fedlsg.Workload``, or a recipe
        as a function, runs in this process, one run at a time, and ``fedlsg.epsilon_of_data``
        counts all of them; what has a name, as ``"mine.py:workload"``, runs in others.
    methods: names, or settings of their own by a label each: ``{"lsg": {"rank": 8}, "bottom":
        {"method": "lsg", "direction": "bottom"}}``. ``"all"``: every recipe.
    seeds: how many from 0, or a list. vary: any other setting and its values.
    labels: what figures and tables call methods, as ``{"lsg": "LSG, rank 4"}``. No run changes.
        The folder keeps them; later calls add to them.
    jobs: runs at a time. budget_minutes: no run is started later.
    out: a folder, by default runs/compare-WORKLOAD. The same call continues a comparison in it:
        what is finished is not run again. A comparison of objects continues only in the process
        that made it, with the same objects; otherwise the folder is a numbered one,
        runs/compare-WORKLOAD-2, which ``folder`` names.

    Guarantee: the runs are those of ``fedlsg compare``: each has ledgers and an epsilon of its own,
    and no epsilon covers choosing the best of them.
    Raises ValueError, before anything runs, for a run that cannot work, and for a folder with runs
    of other settings, or of other objects.
    """
    check_drawing()
    named, recipes = _named_methods(methods)
    here = not isinstance(workload, str) or bool(recipes)
    objects = [workload, *recipes]
    every = "all" in named
    base = {
        "epsilons": list(epsilons),
        "seeds": seeds if isinstance(seeds, int) else list(seeds),
        "ranks": list(ranks),
        "sparsities": list(sparsities),
        "vary": {name: list(values) for name, values in (vary or {}).items()},
        "methods": {} if every else named,
    }
    name = workload_name(workload)
    # "all" is no method of a grid: as an option of the command it stands for every recipe
    grid = grid_of(base, name, {"methods": "all" if every else None}, settings)
    if here and (jobs or 1) > 1:
        raise ValueError("objects of this process run one at a time: leave jobs out, or name them")
    place, console = None if out is None else str(out), Console(quiet=quiet)
    if here:
        free = _folder_of_objects(name, place, objects)
        if free != (usual := folder_of(name, place)):
            print_line(
                f"{usual.name} has runs of other objects, or of an earlier process: these are in "
                f"{free}",
                console,
            )
        place = str(free)
    folder, made = run_grid(
        grid,
        place,
        Limits(jobs=jobs, budget_minutes=budget_minutes, yes=True),
        console,
        View(labels=full_labels(labels or {}, (entry.label for entry in grid.entries))),
        new_worker=Here if here else Worker,
    )
    return Compared(folder=folder, _made=made)
