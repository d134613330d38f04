"""The result of a comparison in sentences: the best mean and the fewest bytes at each epsilon, and what is not sure.

A mean that leads is called the highest mean, no more: the sentence after it says whether the lead over the next one is
larger than its standard error, paired by seed.
"""

import math
import statistics
from collections.abc import Sequence

from simulations.compare.lines import PROBE, Line, score_words
from simulations.report.words import epsilon_words, fewer_bytes

GROUPS = 3
"""Epsilons that the sentences name, the largest ones."""
ERRORS = 2.0
"""A lead that is smaller than so many standard errors is called unsure."""
HELD_OUT = "No epsilon covers these accuracies: they were computed from private rows without noise."
OF = {
    "server": ", for weights at a trusted server",
    "secure": ", for secure sums, against their clients and the server",
    "aggregate": ", for sums that are assumed to be secure, against one of their clients",
}


def sentences(table: Sequence[Line]) -> list[str]:
    """On the finished private lines, the largest epsilon first; then on the best line without privacy."""
    done = [line for line in table if line.mean is not None]
    if not done:
        return ["No run is finished."]
    groups: dict[tuple[object, ...], list[Line]] = {}
    for line in (line for line in done if line.private):
        groups.setdefault((line.task, line.epsilon_target, line.unit, line.trust, _delta(line)), []).append(line)
    named, deltas = (len({of(line) for line in done}) > 1 for of in (lambda line: line.task, _delta))
    largest = sorted(groups.values(), key=lambda own: own[0].epsilon_target or math.inf)[-GROUPS:][::-1]
    said = [_group(own, named, deltas) for own in largest]
    free = [line for line in done if not line.private]
    if free:
        best = _best(free)
        said.append(f"{'Without privacy' if groups else 'No run is private'}: {best.name}, {_score(best)}.")
    if any(run.held_out for line in done for run in line.done):
        said[0] += f" {HELD_OUT}"
    return said


def _delta(line: Line) -> object:
    return line.setting("delta")


def _claim(own: Sequence[Line], deltas: bool) -> str:
    """The epsilon of these lines; without a target it is the largest that one of them spent."""
    target = own[0].epsilon_target
    spent = max(line.epsilon for line in own if line.epsilon is not None)
    epsilon = f"at most {epsilon_words(spent)}" if target is None else f"{target:g}"
    return f"{epsilon} and delta {own[0].setting('delta'):g}" if deltas else epsilon


def _group(own: Sequence[Line], named: bool, deltas: bool) -> str:
    """Sentences on lines of one epsilon; with its delta where ``deltas`` differ."""
    best, first = _best(own), own[0]
    level = f", at {first.of_unit.level}" if first.of_unit.level else ""
    at = f"At epsilon {_claim(own, deltas)}{level}{OF.get(first.trust, '')}{f' on {first.task[0]}' if named else ''}"
    if not any(line.beats_chance is not False for line in own):
        return f"{at} no method is better than guessing."
    what = "lowest mean loss" if best.by_loss else "highest mean accuracy"
    text = f"{at}, {best.name} has the {what}, {_score(best)}{_bytes(best)}{_doubt(best, own)}."
    sent = [line for line in own if line.saved and line.method != PROBE]
    fewest = max(sent, key=lambda line: line.saved or 0.0, default=best)
    if fewest is not best and fewest.method != best.method:
        text += f" {fewest.name} sends the fewest bytes: {_score(fewest)}{_bytes(fewest)}."
    return text


def _best(own: Sequence[Line]) -> Line:
    return min(own, key=lambda line: (line.mean or 0.0) * (1 if line.by_loss else -1))


def _score(line: Line) -> str:
    return score_words(line) + ("" if line.by_loss else " %")


def _bytes(line: Line) -> str:
    said = fewer_bytes(line.saved)
    return f", {said}" if said else ""


def _doubt(best: Line, own: Sequence[Line]) -> str:
    """Why the lead over the next line may be chance; empty if it is larger than its error, or nothing is next."""
    others = [line for line in own if line is not best]
    if not others:
        return ""
    second = _best(others)
    found = paired(best, second)
    if found is None:
        return f" (one seed in common with {second.name}, so the lead may be chance)"
    lead, error = found
    return f" (its lead over {second.name} is within {ERRORS:g} standard errors)" if abs(lead) < ERRORS * error else ""


def paired(one: Line, other: Line) -> tuple[float, float] | None:
    """Mean difference of scores over common seeds, and its standard error; None for fewer than two seeds."""
    first, second = (_by_seed(line) for line in (one, other))
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys(), key=str)]
    if len(differences) < 2:
        return None
    return statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))


def _by_seed(line: Line) -> dict[object, float]:
    return {run.settings.get("seed"): score for run, score in zip(line.done, line.scores, strict=False)}
