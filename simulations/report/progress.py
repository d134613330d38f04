"""Progress bars of commands, on a terminal only: of a share that is done, or of steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Tick = Callable[[float, str], None]
"""Called with the share that is done, and what is done next."""


@contextmanager
def bar(console: Console) -> Iterator[Tick]:
    """A bar for the share that is done."""
    columns = (BarColumn(bar_width=24), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn())
    text = TextColumn("{task.description}")
    with Progress(*columns, TimeRemainingColumn(), text, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda share, words: progress.update(task, completed=share, description=words)


@contextmanager
def count_bar(console: Console, what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar for ``total`` steps; gives the function that advances it by one."""
    text = TextColumn(what + " {task.completed:.0f}/{task.total:.0f}")
    columns = (text, BarColumn(bar_width=24), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)
