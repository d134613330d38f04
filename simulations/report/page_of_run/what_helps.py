"""What would help a run, from what is on record of it: its curve, its noise, its budget.

Each hint is a name and a sentence that says what was seen and what to change. It follows from
numbers that the page shows; it never reads data. A hint is no promise: it was not tried.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from fedlsg.simulations.planning.advice.hints import guessing_line
from fedlsg.simulations.report.page_of_run.run_charts import Curve, accuracy_curve, curves
from fedlsg.simulations.report.words import epsilon_words, percent
from fedlsg.simulations.storage.results import Result
from fedlsg.simulations.workloads.base.split import STANDARD_ERRORS, standard_error

ENOUGH = 8
"""Evaluated rounds below which a curve says nothing of its end."""
PART = 4
"""The end of a curve is one part in so many, as is the stretch before it."""
CLEAR = 2.0
"""Standard errors of a difference between two stretches that count as a change."""
SMALL = 0.1
"""A change of less than this share of the value is none."""
UNSPENT = 0.9
"""A run that spent less than this share of its budget has some left."""
HIDDEN = 1.0
"""rho above which the noise of a step is longer than the clip norm."""
FAR_BEHIND = 0.1
"""Accuracy by which the worst client is behind the mean for a hint."""
Hint = tuple[str, str]
"""What to try, and why."""
NOTHING = "Nothing on record says that a setting should be changed."


class End(NamedTuple):
    """The last part of a curve next to the part before it: their means and the standard error of
    the difference.
    """

    rounds: int
    before: float
    last: float
    error: float

    @property
    def falls(self) -> bool:
        """Whether the end is clearly lower."""
        drop = self.before - self.last
        return drop > CLEAR * self.error and drop > SMALL * abs(self.before)

    @property
    def rises(self) -> bool:
        """Whether the end is clearly higher."""
        return End(self.rounds, -self.before, -self.last, self.error).falls


def end_of(values: Sequence[float], rounds: Sequence[int]) -> End | None:
    """The end of a curve; None for a short one."""
    if len(values) < ENOUGH:
        return None
    size = max(2, len(values) // PART)
    before, last = values[-2 * size : -size], values[-size:]
    error = sum(stdev(part) ** 2 / size for part in (before, last)) ** 0.5
    return End(rounds[-1] - rounds[-size - 1], fmean(before), fmean(last), error)


def hints(result: Result, *, against: bool = False) -> list[Hint]:
    """What to try, the most telling first; nothing of a run that has not ended. ``against``:
    whether the accuracy without privacy is known.
    """
    return list(_hints(result, against=against)) if result.done else []


def _hints(result: Result, *, against: bool) -> Iterator[Hint]:
    loss = next((one for one in curves(result) if one.name == "test loss"), None)
    losses = () if loss is None else loss.values
    if line := guessing_line(result.summary, result.settings.get("auto"), losses=losses):
        yield "Away from guessing", f"{line[:1].upper()}{line[1:]}."
    else:  # the curve of a run that guesses says nothing
        yield from () if loss is None else _of_the_end(result, loss)
        yield from _peak(result)
        yield from _noise(result)
    yield from _budget(result)
    yield from _clients(result)
    if result.private and not against and result.accuracy is not None:
        yield (
            "What privacy costs",
            "The accuracy without privacy is not known here. Run the same settings with "
            "-c mechanism=none, then: fedlsg report RUN --against THAT_RUN.",
        )
    if not result.private and not result.summary.get("reproducible"):
        yield (
            "Privacy",
            "This run claims no epsilon. Leave mechanism out, or choose a private method, and give "
            "--epsilon.",
        )


def _of_the_end(result: Result, loss: Curve) -> Iterator[Hint]:
    """Whether the loss was still falling, or rose, when the run ended."""
    end = end_of(loss.values, loss.rounds)
    if end is None:
        return
    moved = f"from {end.before:.3g} to {end.last:.3g} (means of {end.rounds} rounds each)"
    if end.falls:
        rounds = 2 * int(result.summary.get("rounds", len(result.rows)))
        more = (
            " It spends more epsilon; a new run of more rounds at the same epsilon has more noise "
            "in each."
            if result.private
            else ""
        )
        yield (
            "More rounds",
            f"The loss was still falling at the end, {moved}. Train further: fedlsg resume RUN "
            f"--rounds {rounds}.{more}",
        )
    elif end.rises:
        fewer = "Fewer rounds at the same epsilon have less noise in each" if result.private else ""
        yield (
            "Fewer rounds, or smaller steps",
            f"The loss was rising at the end, {moved}. "
            f"{fewer or 'Fewer rounds may do as well'}; a smaller learning_rate is steadier.",
        )


def _peak(result: Result) -> Iterator[Hint]:
    """A round that was clearly better than the last one."""
    curve, chance = accuracy_curve(result), result.chance
    if not curve.values or chance is None or result.accuracy is None:
        return
    best = max(curve.values)
    at, lost = curve.rounds[curve.values.index(best)], best / 100 - result.accuracy
    if lost > STANDARD_ERRORS * standard_error([best / 100], chance):
        yield (
            "Keep the best round",
            f"Round {at} had {best:.1f} %, {100 * lost:.1f} points more than the last one. "
            "-c callbacks=best-model keeps the weights of such a round; choose it on public rows "
            "that are not reported on.",
        )


def _budget(result: Result) -> Iterator[Hint]:
    """What was not spent of a budget."""
    budget, spent = result.epsilon_target, result.epsilon_max
    if not result.private or budget is None or spent is None or spent > UNSPENT * budget:
        return
    yield (
        "The rest of the budget",
        f"Epsilon {epsilon_words(spent)} of {budget:g} is spent. Less noise, or more rounds, are "
        "paid for already: leave noise_multiplier out, and it is planned for the whole budget.",
    )


def _noise(result: Result) -> Iterator[Hint]:
    rho = result.summary.get("rho")
    if not result.private or rho is None or rho <= HIDDEN:
        return
    yield (
        "Less noise for the same epsilon",
        f"The noise of a step is {rho:.2g} times as long as the clip norm. Larger batches, more "
        "clients in a round with trust=secure, or fewer values sent (a smaller rank, a larger "
        "sparsity) shorten it next to the signal.",
    )


def _clients(result: Result) -> Iterator[Hint]:
    said = result.summary.get("accuracy_by_client")
    if said and said["mean"] - said["worst"] > FAR_BEHIND:
        yield (
            "The worst client",
            f"One client has {percent(said['worst'])}, the mean is {percent(said['mean'])}. "
            "weighting=clients counts each client alike; personal parameters fit a part of the "
            "model to each.",
        )
