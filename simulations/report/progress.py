"""A progress bar for commands that know the share that is done."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Tick = Callable[[float, str], None]
"""Called with the share that is done, and words for what comes next."""


@contextmanager
def bar(console: Console) -> Iterator[Tick]:
    """A bar on a terminal, nothing elsewhere."""
    columns = (BarColumn(bar_width=24), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn())
    text = TextColumn("{task.description}")
    with Progress(*columns, TimeRemainingColumn(), text, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda share, words: progress.update(task, completed=share, description=words)
