"""Progress of a command: live bars on a terminal or in a notebook, lines in a log or a pipe."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from threading import Timer
from time import monotonic

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from fedlsg.simulations.report.terminals.terminal import CellBar, print_line, print_whole
from fedlsg.simulations.report.words import duration, epsilon_words, human_bytes, named, percent
from fedlsg.simulations.storage.round_tables import Row

Tick = Callable[[float, str], None]
"""Called with the share that is done, and what is done next."""
WIDTH = 80
"""The most columns of a live display."""
LINES = 20
"""The number of plain lines of progress, about."""
PAUSE_SECONDS = 2.0
"""The least seconds between two plain lines, and before the first estimate."""
AGREE = 2.0
"""The time left is shown if the mean pace and that of the newer half differ by at most this factor.

Two parts at least have to be done in the newer half of the time.
"""
ROUNDING = 1e-9
"""Strides that may be missing because of rounding."""
WORTH_SECONDS = 10.0
"""Less time left than this is not announced."""


def is_live(console: Console) -> bool:
    """Whether lines can be written again: on a terminal that can move its cursor."""
    return console.is_terminal and not console.is_dumb_terminal


def clock(seconds: float) -> str:
    """Time left: 02:05, or 1:02:05 with hours."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts in lines that fit; a fact is broken only if it does not fit into a line of its own."""

    facts: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines, with two spaces between two facts."""
        line = ""
        for fact in self.facts:
            longer = f"{line}  {fact}" if line else fact
            if line and len(longer) > options.max_width:
                yield Text(line)
                longer = fact
            line = longer
        yield Text(line, overflow="ellipsis", no_wrap=True)


class Bar(Progress):
    """Rich's progress with facts below its bars, at most ``WIDTH`` columns wide."""

    facts: Sequence[str] = ()

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bars, then the facts."""
        yield Constrain(self.make_tasks_table(self.tasks), WIDTH)
        if self.facts:
            yield Constrain(Facts(facts=self.facts), WIDTH)


def live_bar(console: Console, *, transient: bool = False) -> Bar:
    """A bar whose tasks have a description, and the fields ``of`` (how much is done) and ``left``.

    transient: it disappears at its end.
    """
    return Bar(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[of]}", table_column=Column(no_wrap=True, justify="right")),
        TextColumn("{task.fields[left]}", style="dim", table_column=Column(no_wrap=True)),
        console=console,
        disable=not is_live(console),
        transient=transient,
    )


class Meter:
    """Shows how much of ``total`` is done: a live bar, or plain lines.

    There are about ``LINES`` plain lines. The first estimate of the time left is a line of its own
    there.

    first: what earlier processes did.
    what: the name of what is done.
    of: says in words how much is done.
    pause: the least seconds between two plain lines.
    transient: the bar disappears at its end.
    even: equal parts take about equal times; False: no time is estimated.
    """

    def __init__(
        self,
        console: Console,
        total: float,
        *,
        first: float = 0.0,
        what: str,
        of: Callable[[float], str],
        pause: float = PAUSE_SECONDS,
        transient: bool = False,
        even: bool = True,
    ) -> None:
        self.even = even
        self.console = console
        self.total = total
        self.first = first
        self.of = of
        self.what = what
        self.pause = pause
        self.began = self.printed = monotonic()
        self.marks: list[tuple[float, float]] = []
        self.estimated = False
        self.progress = live_bar(console, transient=transient)
        self.task = self.progress.add_task(
            what, total=total, of=of(first).strip(), left=self.words_left(None)
        )
        self.progress.update(self.task, completed=first)
        self.cell = CellBar() if console.is_jupyter and not console.quiet else None

    def left(self, done: float, now: float) -> float | None:
        """Seconds left, from the mean pace of this process.

        None before two parts are done, and if parts are uneven, or turn out to be (``AGREE``).
        """
        self.marks.append((now, done))
        if len(self.marks) < 2 or done <= self.first or not self.even:
            return None
        # the last mark before the newer half of the time
        middle = (self.began + now) / 2
        earlier = bisect_right(self.marks, middle, hi=len(self.marks) - 1, key=itemgetter(0))
        then, before = self.marks[max(earlier - 1, 0)]
        mean = (now - self.began) / (done - self.first)  # seconds of a part
        newer = (now - then) / (done - before) if done > before else math.inf
        agree = mean <= AGREE * newer and newer <= AGREE * mean
        return (self.total - done) * mean if agree else None

    def words_left(self, seconds: float | None) -> str:
        """The time left in words; empty if no time is estimated."""
        if not self.even:
            return ""
        return "left --:--" if seconds is None else f"left {clock(seconds)}"

    def show(self, done: float, facts: Sequence[str] = (), now: float | None = None) -> None:
        """Show that so much is done; ``now``: on the monotonic clock, None: this moment."""
        now = monotonic() if now is None else now
        before = float(self.progress.tasks[0].completed)
        seconds = self.left(done, now)
        left = self.words_left(seconds)
        self.progress.update(self.task, completed=done, of=self.of(done).strip(), left=left)
        self.progress.facts = facts
        words = [*facts, left] if left and done < self.total else facts
        if self.cell is not None:
            self.cell.show(done / self.total, (f"{self.what} {self.of(done).strip()}", *words))
        elif not is_live(self.console):
            self._plain(before, done, words, now, seconds)

    def _plain(
        self, before: float, done: float, words: Sequence[str], now: float, seconds: float | None
    ) -> None:
        """Print the first estimate, and a line if ``done`` is in another stride than ``before``."""
        if not self.estimated and seconds is not None and now - self.began >= PAUSE_SECONDS:
            self.estimated = True
            if seconds >= WORTH_SECONDS:
                announce_estimate(self.console, seconds)
        stride = max(self.total / LINES, 1.0) if self.total > 1 else 1 / LINES
        earlier, later = (math.floor(part / stride + ROUNDING) for part in (before, done))
        is_due = later > earlier or done >= self.total > before
        if is_due and now - self.printed >= self.pause:
            self.printed = now
            print_whole("  ".join((f"{self.what} {self.of(done)}", *words)), self.console)


def announce_estimate(console: Console, seconds: float) -> None:
    """The first estimate, as a plain line."""
    console.print(f"estimate: about {duration(seconds)} left", highlight=False, markup=False)


@contextmanager
def bar(console: Console, what: str, *, even: bool = True) -> Iterator[Tick]:
    """A bar for the share of ``what`` that is done. ``even``: see ``Meter``."""
    meter = Meter(
        console, 1.0, what=what, transient=True, even=even, of=lambda share: f"{100 * share:.0f} %"
    )
    with meter.progress:
        yield lambda share, words: meter.show(share, (words,) if words else ())


@contextmanager
def count_bar(
    console: Console, what: str, total: int, *, even: bool = True
) -> Iterator[Callable[..., None]]:
    """A bar for ``total`` steps; gives the function that advances it by one step.

    The function takes facts, which are shown below the bar. ``even``: see ``Meter``.
    """
    meter = Meter(
        console,
        total,
        what=what,
        transient=True,
        even=even,
        of=lambda done: f"{done:.0f}/{total}",
    )
    done = 0

    def advance(*facts: str) -> None:
        nonlocal done
        done += 1
        meter.show(done, facts)

    with meter.progress:
        yield advance


class RoundDisplay:
    """Shows each round when it ends: a bar with facts on a terminal, else about LINES plain lines.

    rounds: of the run.
    first: rounds that earlier processes did.
    names: of the clients, for messages; None without.
    """

    def __init__(
        self, console: Console, rounds: int, first: int, names: Sequence[str] | None = None
    ) -> None:
        self.console, self.rounds, self.first, self.names = console, rounds, first, names
        self.up = self.down = 0
        self.accuracy: float | None = None
        self.loss: float | None = None
        self.meter = Meter(
            console,
            rounds,
            first=first,
            what="round",
            of=lambda done: f"{done:>4.0f}/{rounds}",
            pause=0.0,
        )
        self.progress = self.meter.progress
        self.progress.facts = ("the first round has not ended yet",)
        self.shown = False

    def count(self, row: Row) -> None:
        """Add a row to the totals. Rows of an earlier process are only counted."""
        self.up += row.uplink_bytes
        self.down += row.downlink_bytes
        self.accuracy = row.accuracy if row.accuracy is not None else self.accuracy
        self.loss = row.loss if row.loss is not None else self.loss

    def on_round(self, row: Row) -> None:
        """Show one finished round."""
        now = monotonic()
        if not self.shown:
            self.meter.began = now - row.seconds  # the start of an engine is no round
            self.shown = True
        self.count(row)
        reached = f"accuracy {percent(self.accuracy)}"
        if self.accuracy is None and self.loss is not None:
            reached = f"loss {self.loss:.4g}"
        facts = [reached, f"epsilon {epsilon_words(row.epsilon_max)}"]
        if row.shows_participation:
            facts += [f"up {human_bytes(self.up)}", f"down {human_bytes(self.down)}"]
        if row.simulated is not None:
            facts.append(f"simulated {duration(row.simulated.simulated_clock)}")
        self.meter.show(row.round, facts, now)
        if row.reasons:
            text = f"round {row.round}: {named(f'client {row.reasons}', self.names)}"
            print_whole(text, self.console, "yellow")


@contextmanager
def showing(
    console: Console, rounds: int, first: int, names: Sequence[str] | None = None
) -> Iterator[RoundDisplay]:
    """A live display of rounds ``first + 1`` to ``rounds``; ``names``: of the clients."""
    display = RoundDisplay(console, rounds, first, names)
    try:  # an interruption in the middle of its start ends it as well
        display.progress.start()
        yield display
    finally:
        display.progress.stop()


Say = Callable[[str], None]
"""Called with what begins now."""
PATIENCE_SECONDS = 10.0
"""A phase that is over sooner is not mentioned in a log or a pipe."""


class Phases:
    """Prints the name of a phase once, if it still lasts after ``PATIENCE_SECONDS``.

    It is called with the name of each phase that begins.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._timer: Timer | None = None

    def __call__(self, what: str) -> None:
        self.end()
        self._timer = Timer(PATIENCE_SECONDS, print_line, [f"{what} ...", self._console, "dim"])
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """End the phase: its name is not printed any more."""
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def lasting(console: Console) -> Iterator[Say]:
    """Gives a function that says what begins now, in a log or a pipe.

    It does nothing on a terminal, where something else shows it.
    """
    if is_live(console):
        yield lambda line: None
        return
    phases = Phases(console)
    try:
        yield phases
    finally:
        phases.end()


@contextmanager
def working(console: Console, what: str) -> Iterator[Say]:
    """Show ``what`` is done; gives a function that shows what is done next."""
    if is_live(console):
        with console.status(what) as status:
            yield status.update
        return
    with lasting(console) as say:
        say(what)
        yield say
