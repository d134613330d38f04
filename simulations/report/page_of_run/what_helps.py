"""Hints that may help a run, from its record: its curve, its noise, its budget.

Each hint is a name and a sentence that says what was seen and what to change. It follows from
numbers that the page shows, and never reads data. No hint was tried, so none is a promise.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from fedlsg import strategies
from fedlsg.extras import install_hint
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.advice.hints import guessing_line
from fedlsg.simulations.report.page_of_run.run_charts import Curve, accuracy_curve, curves
from fedlsg.simulations.report.words import epsilon_words, percent
from fedlsg.simulations.settings.settings import NAMES_OF_CODE
from fedlsg.simulations.storage.results import Result
from fedlsg.simulations.workloads.base.split import STANDARD_ERRORS, standard_error
from fedlsg.user_code import is_reference

ENOUGH = 8
"""The least evaluated rounds of a curve that shows how it ends."""
PART = 4
"""The end of a curve is a quarter of it, as is the stretch before the end."""
CLEAR = 2.0
"""A difference between two stretches is a change if it is more than this many standard errors."""
SMALL = 0.03
"""A change of less than this share of the value counts as no change."""
BEST = 0.995
"""The accuracy from which on nothing is left to gain."""
FEWER_BYTES = 1.05
"""A method sends fewer bytes if a dense update has more than this many times as many."""
SENDS_MORE = ("dpsgd", "probe")
"""Methods that were the most accurate of those that were measured, the dense one first."""
UNSPENT = 0.9
"""A run that spent less than this share of its budget has some left."""
HIDDEN = 1.0
"""rho above which the noise of a step is longer than the clip norm."""
FAR_BEHIND = 0.1
"""There is a hint if the worst client's accuracy is behind the mean by more than this."""
Hint = tuple[str, str]
"""What to try, and why."""
NOTHING = "Nothing on record says that a setting should be changed."


class End(NamedTuple):
    """The last part of a curve, compared with a part before it.

    rounds: of each part.
    before, last: the means of the two parts.
    error: the standard error of their difference.
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
    return _compare(before, last, rounds)


def _compare(before: Sequence[float], last: Sequence[float], rounds: Sequence[int]) -> End:
    """Two parts of one length of a curve; ``rounds``: of the whole curve."""
    size = len(last)
    error = sum(stdev(part) ** 2 / size for part in (before, last)) ** 0.5
    return End(rounds[-1] - rounds[-size - 1], fmean(before), fmean(last), error)


class Turn(NamedTuple):
    """The lowest part of a curve that has risen since.

    first, last: the rounds of that part.
    since: the end of the curve, compared with that part.
    """

    first: int
    last: int
    since: End


def turn_of(values: Sequence[float], rounds: Sequence[int]) -> Turn | None:
    """The part of a curve that was clearly lower than its end; None without, and for a short curve.

    Parts of several lengths are tried, the longest first: a long one hides a turn near the end.
    """
    if len(values) < ENOUGH:
        return None
    sizes = [len(values) // (PART * times) for times in (1, 2, 4)]
    for size in [max(2, sizes[0]), *(size for size in sizes[1:] if size >= ENOUGH)]:
        starts = range(len(values) - size + 1)
        best = min(starts, key=lambda start: fmean(values[start : start + size]))
        if best + size > len(values) - size:
            continue  # it overlaps with the end
        since = _compare(values[best : best + size], values[-size:], rounds)
        if since.rises:
            return Turn(rounds[best], rounds[best + size - 1], since)
    return None


def is_named(result: Result) -> bool:
    """Whether a command finds workload and method by their names.

    Those of a script or notebook have none: their runs can be continued in Python alone.
    """
    known = (*workloads.names(), *strategies.names())
    return all(
        is_reference(str(result.settings.get(name))) or result.settings.get(name) in known
        for name in NAMES_OF_CODE
    )


def hints(result: Result, *, against: Result | None = None) -> list[Hint]:
    """What to try, the most important first; empty for a run that has not ended.

    against: a run without privacy on the same data; None without.
    """
    return list(_hints(result, against=against)) if result.done else []


def _hints(result: Result, *, against: Result | None) -> Iterator[Hint]:
    if enough := smaller_epsilon(result, against):
        yield enough
        yield from _clients(result)
        return
    for note in result.start.get("notes", ()):
        yield "Said before the run", f"{note}."
    loss = next((curve for curve in curves(result) if curve.name == "test loss"), None)
    losses = () if loss is None else loss.values
    if line := guessing_line(result.summary, result.settings.get("auto"), losses=losses):
        yield "Away from guessing", f"{line[:1].upper()}{line[1:]}."
    else:  # the curve of a run that guesses shows no trend
        yield from _public_features(result)
        yield from _sends_more(result, against)
        yield from () if loss is None else _of_the_end(result, loss)
        yield from _peak(result)
        yield from _noise(result)
    yield from _budget(result)
    yield from _clients(result)
    if result.private and against is None and result.accuracy is not None:
        yield "What privacy costs", _against_no_privacy(result)
    if not result.private and not result.summary.get("reproducible"):
        yield (
            "Privacy",
            "This run claims no epsilon. Leave mechanism out, or choose a private method, and give "
            "--epsilon.",
        )


def _draws() -> str:
    """The extra that a command which draws needs, if it is not installed."""
    return install_hint("plots", "pandas", "matplotlib")


def _against_no_privacy(result: Result) -> str:
    """How to find out what privacy costs."""
    then = f"then: fedlsg report RUN --against THAT_RUN{_draws()}."
    if result.deployed:
        return (
            "The accuracy without privacy is not known here, and clients of a deployment refuse to "
            "train without it. Simulate the same settings on public rows, with and without "
            f"epsilon, {then}"
        )
    mechanism = "-c mechanism=none" if is_named(result) else 'mechanism="none"'
    return (
        "The accuracy without privacy is not known here. Run the same settings without epsilon "
        f"and with {mechanism}, {then}"
    )


def _further(result: Result, rounds: int) -> str:
    """How to train a run that has ended up to so many rounds, and what that spends, in words."""
    if result.deployed:
        return (
            f"Start another run with rounds = {rounds} in the run config: this one has ended, and "
            "is not trained further. Each client's ledger counts both runs against its "
            "epsilon-max, and at the same epsilon more rounds have more noise in each."
        )
    named = is_named(result)
    for what in ("epsilon", "delta"):
        if result.settings.get(f"client_{what}s") is not None:
            own = f"client_{what}s=...: each client's {what} of both runs together"
            option = f"--start-from RUN and -c {own}" if named else f"start_from=RUN and {own}"
            return f"Go on in a new run: the same {'command' if named else 'call'} with {option}."
    if named:
        budget = " --epsilon LARGER" if result.private else ""
        further = f"fedlsg resume RUN --rounds {rounds}{budget}"
    else:
        budget = ", epsilon=LARGER" if result.private else ""
        further = f"the same call with resume=True, rounds={rounds}{budget}"
    more = (
        " It spends more epsilon; a new run of more rounds at the same epsilon has more noise in "
        "each."
        if result.private
        else ""
    )
    return f"Train further: {further}.{more}"


def _of_the_end(result: Result, loss: Curve) -> Iterator[Hint]:
    """Whether the loss was still falling, or rose, when the run ended."""
    end = end_of(loss.values, loss.rounds)
    if end is None:
        return
    if turn := turn_of(loss.values, loss.rounds):
        first, last, since = turn
        yield (
            "Fewer rounds, or smaller steps",
            f"The loss was lowest in rounds {first} to {last} and rose since, from "
            f"{since.before:.3g} to {since.last:.3g} (means of {since.rounds} rounds each). "
            f"{_fewer_rounds(result)}",
        )
        return
    moved = f"from {end.before:.3g} to {end.last:.3g} (means of {end.rounds} rounds each)"
    if end.falls:
        rounds = 2 * int(result.summary.get("rounds", len(result.rows)))
        yield (
            "More rounds",
            f"The loss was still falling at the end, {moved}. {_further(result, rounds)}",
        )


def _fewer_rounds(result: Result) -> str:
    """What may keep a loss from rising and was not used in this run, in words."""
    fewer = (
        "Fewer rounds at the same epsilon have less noise in each"
        if result.private
        else "Fewer rounds may do as well"
    )
    average = "" if result.settings.get("ema") else ", and so is an average of the weights (ema)"
    return f"{fewer}; a smaller learning_rate (learning_rate=x0.5) is steadier{average}."


def smaller_epsilon(result: Result, against: Result | None) -> Hint | None:
    """A hint for a private run whose accuracy is about 100 %, or as high as without privacy."""
    chance, accuracy, budget = result.chance, result.accuracy, result.epsilon_target
    if not result.private or accuracy is None or chance is None:
        return None
    smaller = "" if budget is None else f", such as --epsilon {budget / 2:g}"
    if accuracy >= BEST:
        reached = f"The accuracy is {percent(accuracy)}"
    elif (lost := lost_to_privacy(result, against)) is not None and lost.level:
        reached = f"The accuracy is level with that without privacy ({percent(lost.without)})"
    else:
        return None
    return ("A smaller epsilon", f"{reached}: a smaller epsilon may do{smaller}.")


class Lost(NamedTuple):
    """What privacy costs a run.

    without: the accuracy without privacy.
    points: how much higher that is; in 0..1.
    level: whether the difference is within the standard error of the test split.
    """

    without: float
    points: float
    level: bool


def lost_to_privacy(result: Result, against: Result | None) -> Lost | None:
    """How far a run is behind one without privacy; None if either accuracy is not known.

    The standard error is the larger one of both, on the test split.
    """
    if against is None or against.accuracy is None or result.accuracy is None:
        return None
    lost, chance = against.accuracy - result.accuracy, result.chance
    level = lost <= 0
    if chance is not None:
        level = lost <= max(
            standard_error([result.accuracy], chance), standard_error([against.accuracy], chance)
        )
    return Lost(against.accuracy, lost, level)


def _public_features(result: Result) -> Iterator[Hint]:
    """A hint for a private run on images that trains a whole network from random weights."""
    images = result.start.get("rows", {}).get("images", False)
    if not (result.private and images and result.accuracy is not None):
        return
    if result.settings.get("pretrained"):
        return
    option = "--features patches" if is_named(result) else 'features="patches"'
    yield (
        "Public features",
        f"The inputs are images: {option} trains a small head on fixed features of them, which no "
        "noise reaches (fedlsg docs features).",
    )


def _sends_more(result: Result, against: Result | None) -> Iterator[Hint]:
    """A hint for a method that sends fewer values than the model has, if its noise is short.

    Then fewer values save less noise than they lose in accuracy.
    """
    rho, saved, settings = result.summary.get("rho"), result.saved, result.settings
    if not result.private or rho is None or rho > HIDDEN or result.method == SENDS_MORE[0]:
        return
    if saved is None or saved < FEWER_BYTES:
        return
    others = [name for name in SENDS_MORE if name != result.method]
    tried = f'method="{SENDS_MORE[0]}"'
    known = settings.get("workload") in workloads.names() and not result.deployed
    if known and result.epsilon_target is not None:
        tried = (
            f"fedlsg compare {settings['workload']} --methods {','.join([result.method, *others])} "
            f"--epsilons {result.epsilon_target:g}{_draws()}"
        )
    lost = lost_to_privacy(result, against)
    behind = "" if lost is None else f"{100 * lost.points:.1f} points are lost to privacy. "
    yield (
        "A method that sends more",
        f"{behind}The noise of a step is short (rho {rho:.2g}), so fewer values save little noise "
        f"and may cost accuracy. {' or '.join(others)} may gain, with up to {saved:.1f} times the "
        f"bytes: {tried}.",
    )


def _peak(result: Result) -> Iterator[Hint]:
    """A hint if a round was clearly better than the last one."""
    curve, chance = accuracy_curve(result), result.chance
    if not curve.values or chance is None or result.accuracy is None:
        return
    best = max(curve.values)
    best_model = "callbacks=best-model" if result.deployed else "-c callbacks=best-model"
    best_round = curve.rounds[curve.values.index(best)]
    lost = best / 100 - result.accuracy
    if lost > STANDARD_ERRORS * standard_error([best / 100], chance):
        yield (
            "Keep the best round",
            f"Round {best_round} had {best:.1f} %, {100 * lost:.1f} points more than the last one. "
            f"{best_model} keeps the weights of such a round; choose it on public rows "
            "that are not reported on.",
        )


def _budget(result: Result) -> Iterator[Hint]:
    """A hint if much of a budget was not spent."""
    budget, spent = result.epsilon_target, result.epsilon_max
    if not result.private or budget is None or spent is None or spent > UNSPENT * budget:
        return
    yield (
        "The rest of the budget",
        f"Epsilon {epsilon_words(spent)} of {budget:g} is spent. Less noise, or more rounds, are "
        "paid for already: leave noise_multiplier out, and it is planned for the whole budget.",
    )


def _noise(result: Result) -> Iterator[Hint]:
    """A hint if the noise of a step is longer than the clip norm."""
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
    """A hint if a client is far behind the others."""
    said = result.summary.get("accuracy_by_client")
    if said and said["mean"] - said["worst"] > FAR_BEHIND:
        yield (
            "The worst client",
            f"One client has {percent(said['worst'])}, the mean is {percent(said['mean'])}. "
            "weighting=clients counts each client alike; personal parameters fit a part of the "
            "model to each.",
        )
