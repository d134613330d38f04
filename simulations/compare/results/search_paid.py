"""Sentences on whether a search paid: chosen settings compared with those without a search.

They compare the same method on the same seeds, and say what both cost in privacy.
"""

import math

from fedlsg.simulations.compare.results.line_words import Line, number_of, score_words
from fedlsg.simulations.compare.results.lines import SAME, paired
from fedlsg.simulations.compare.results.pandas_library import pd
from fedlsg.simulations.report.words import counted, epsilon_words

FEWEST_SEEDS = 2
"""The least seeds with a spread: a difference is shown from 12.7 standard errors on (Student)."""
CLEAR = 3.0
"""A gain over two seeds "seems to be" one if it is more than this many standard errors."""
FIGURES = 3
"""Significant digits of an epsilon for another run."""


def search_paid(table: pd.DataFrame) -> list[str]:
    """A sentence for each finished line with chosen settings, the smallest epsilon first."""
    done = [line for line in table.itertuples() if line.n]
    return [_verdict(line, done) for line in done if line.untouched]


def _verdict(line: Line, done: list[Line]) -> str:
    """The sentence about one line with chosen settings; ``done``: all finished lines."""
    at = "" if line.epsilon_target is None else f" at epsilon {line.epsilon_target:g}"
    if line.untouched == line.given_label:
        return (
            f"{line.name}{at}: the search found nothing better than the values without a search"
            f"{_cost(line)}."
        )
    untouched = [
        other for other in done if other.given_label == line.untouched and other.task == line.task
    ]
    for other in untouched:
        if other.epsilon_target == line.epsilon_target:
            return f"{_gain(line, other, at)}{_cost(line, other)}{_instead(line, untouched)}."
    return f"{line.name}{at}: whether the search paid is not known, {line.untouched} has no run."


def _gain(line: Line, other: Line, at: str) -> str:
    """Chosen minus untouched scores, and what the difference shows."""
    lag = paired(other, line)  # how far the untouched settings are behind
    better = lag.behind > 0
    verdict = "gained" if better else "lost"
    few = lag.seeds == FEWEST_SEEDS and better and lag.behind > CLEAR * (lag.error or math.inf)
    if few and lag.may_be_chance:
        verdict = "seems to have gained, which two seeds cannot show (give --seeds 3 or more)"
    elif lag.may_be_chance:
        verdict = "may have gained nothing" if better else "gained nothing that these runs show"
    unit = "" if line.by_loss else " points"
    error = number_of(line, lag.error)
    seeds = counted(lag.seeds, "seed")
    over = f"standard error {error}, paired over {seeds}" if error else seeds
    if lag.may_be_chance and error:
        over += "; it may be chance"
    return (
        f"The search of {line.name}{at} {verdict}: chosen minus untouched settings is "
        f"{'+' if better else '-'}{number_of(line, abs(lag.behind))}{unit} ({over})"
    )


def _cost(line: Line, other: Line = None) -> str:
    """What choosing and all runs of the line cost; ``other``: the line without a search."""
    if line.epsilon_with_choosing is None:
        return ""
    if line.choosing_epsilon == 0:
        return "; choosing cost no privacy"
    runs = counted(len(line.runs), "run")
    whole = (
        f"; choosing cost epsilon {epsilon_words(line.choosing_epsilon)}, with its {runs} "
        f"{epsilon_words(line.epsilon_with_choosing)} in all at delta {line.delta_with_choosing:g}"
    )
    if other is None or other.epsilon_with_choosing is None:
        return whole
    return f"{whole}, without a search {epsilon_words(other.epsilon_with_choosing)}"


def _instead(line: Line, untouched: list[Line]) -> str:
    """What untouched settings reach in one run that spends as much as the search and its runs.

    If there is no such run, how to make one. Empty if choosing cost no privacy, or if its cost is
    not known.
    """
    whole, target = line.epsilon_with_choosing, line.epsilon_target
    if whole is None or target is None or line.choosing_epsilon == 0 or math.isinf(whole):
        return ""
    affordable = [
        other for other in untouched if target < (other.epsilon_target or 0) <= whole * (1 + SAME)
    ]
    if affordable:
        other = max(affordable, key=lambda other: other.epsilon_target)
        unit = "" if other.by_loss else " %"
        ahead = other.mean > line.mean if line.more_is_better else other.mean < line.mean
        verdict = "the search did not pay" if ahead else "the search paid"
        return (
            f". One run of the untouched settings at epsilon {other.epsilon_target:g}, no more "
            f"than choosing and runs cost together, has {score_words(other)}{unit}: by the means, "
            f"{verdict}"
        )
    # rounded down to FIGURES digits: the run must not spend more
    step = 10.0 ** (math.floor(math.log10(whole)) - FIGURES + 1)
    most = f"{math.floor(whole / step) * step:.{FIGURES}g}"
    return (
        f". What one run of the untouched settings at epsilon {most} reaches is not known: fedlsg "
        f"compare --grid grid.toml --epsilons {target:g},{most} --out . in this folder measures it"
    )
