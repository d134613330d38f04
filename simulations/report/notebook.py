"""What a notebook's cell shows while a run goes on, and of its figures. It needs no widgets, only IPython itself."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def shell() -> Any:
    """IPython's shell, where the output goes into cells of a notebook; else None."""
    ipython = sys.modules.get("IPython")
    found = None if ipython is None else ipython.get_ipython()
    return found if getattr(found, "kernel", None) is not None else None


class CellBar:
    """One line in a cell, written again each time: a bar, and words behind it."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, share: float, words: Sequence[str]) -> None:
        """This share is done now."""
        from IPython.display import HTML, display
        from markupsafe import Markup

        bar = Markup('<progress value="{:.4f}" max="1"></progress> {}').format(share, "  ".join(words))
        line = {"text/html": HTML(str(bar)).data, "text/plain": "  ".join(words)}
        if self._handle is None:
            self._handle = display(line, raw=True, display_id=True)
        else:
            self._handle.update(line, raw=True)


def shown(figure: "Figure") -> "Figure":
    """The figure, which a notebook's cell shows once, whether it is the cell's last value or not."""
    if shell() is not None:
        _display(figure)
        figure.__dict__["_ipython_display_"] = partial(_display_elsewhere, figure, shell().execution_count)
    return figure


def _display_elsewhere(figure: "Figure", cell: int) -> None:
    """Show it in other cells than the one that showed it."""
    if shell() is None or shell().execution_count != cell:
        _display(figure)


def _display(figure: "Figure") -> None:
    from IPython.display import Image, display

    from simulations.report.figure import png

    display(Image(png(figure), width=round(figure.get_figwidth() * 100)))
