"""The lines of a comparison as a table, for pages, terminals, CSV and Markdown; and in sentences.

The sentences name the best mean and the fewest bytes at each epsilon, and what is not sure. A mean
that leads is the highest mean, no more: it is said whether its lead over the next one is larger
than its standard error, paired by seed.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter, methodcaller
from typing import Any

from fedlsg.config.units import EXAMPLE, UNITS
from fedlsg.simulations.compare.cells import grouped
from fedlsg.simulations.compare.lines import PROBE, Line, measured, score_words, value_words
from fedlsg.simulations.planning.advice import RHO_MEANING
from fedlsg.simulations.report.colours import looks
from fedlsg.simulations.report.facts import trust_words
from fedlsg.simulations.report.page import RowKind, Table, cell_text
from fedlsg.simulations.report.table import Column, make_table, records
from fedlsg.simulations.report.words import NOT_PRIVATE, epsilon_words, fewer_bytes, human_bytes
from fedlsg.simulations.storage.results import Result, as_csv
from fedlsg.simulations.workloads.base.split import STANDARD_ERRORS

CHANCE_MARK = "†"
CHANCE_NOTE = f"{CHANCE_MARK} not better than guessing by {STANDARD_ERRORS:g} standard errors"
OWN = ("rank", "sparsity", "unit", "trust", "rho", "epsilon")
"""Settings that have a column in every comparison."""
SETTINGS = ("workload", "model", "rank", "sparsity", "delta")
"""Settings that have a column in every table.csv."""
RARE = ("rank", "sparsity", "rho", "over_linear_probe", "transfer_seconds")
DULL = {"trust": "client", "unit": EXAMPLE.name} | dict.fromkeys(RARE, "--")
"""A page leaves out a column that says this of every line, by its key."""
CROWDED = 2
"""Columns beyond this place are optional only where settings are varied."""


_rho, _delta = methodcaller("mean_of", "rho"), methodcaller("setting", "delta")


def columns_of(table: Sequence[Line]) -> list[Column]:
    """Every fact of a line: in tables under its heading, in table.csv under its key."""
    by_loss = any(line.by_loss for line in table)
    score = measured(table) if by_loss else "accuracy, %"
    return [
        _fact("label", "method"),
        _fact("method"),
        _setting("workload"),
        _setting("model"),
        _setting("rank", "r", lambda rank: f"{rank or '--'}"),
        _setting("sparsity", "p", "g", optional=6),
        _setting("delta"),
        *(
            _varied(name)
            for name in dict.fromkeys(n for line in table for n in line.varied)
            if name not in OWN
        ),
        _fact("epsilon_target"),
        _fact("epsilon", "epsilon", key="epsilon_max", words=_epsilon),
        _fact("epsilon_outside", "outside", words=_outside),
        _fact("private"),
        _fact("unit.name", "unit", key="unit"),
        _fact("trust", "trust"),
        Column("rho", _rho, lambda rho: f"{rho:.2f}" if rho else "--", "rho", optional=4),
        Column(score, attrgetter("mean"), words=_score, best="least" if by_loss else "most"),
        Column("", lambda line: None if line.by_loss else line.mean, key="accuracy_mean"),
        Column("", lambda line: None if line.by_loss else line.sd, key="accuracy_sd"),
        _mean("loss", "loss_mean"),
        _fact("standard_error", "s.e.", lambda share: f"{100 * share:.1f}", optional=1),
        Column("n", lambda line: len(line.done), key="n", words=_seeds),
        Column("", lambda line: len(line.runs), key="planned"),
        Column("", lambda line: line.chance and line.chance.level, key="chance"),
        _fact("beats_chance"),
        _fact(
            "over_probe",
            "over probe",
            lambda share: f"{100 * share:+.1f}",
            key="over_linear_probe",
            optional=7,
        ),
        _fact(
            "uplink",
            "uplink",
            human_bytes,
            key="uplink_bytes_per_client_round",
            optional=5,
            best="least",
        ),
        _fact("saved", "saved", "{:.1f}x".format, key="saved_ratio", optional=3, best="most"),
        _mean("uplink_bytes", "uplink_bytes_total"),
        _mean("downlink_bytes", "downlink_bytes_total"),
        _fact("transfer", "transfer, s", ".3g", key="transfer_seconds", best="least"),
        _mean("wall_seconds", "wall_seconds"),
        _fact("training_seconds", "training, s", ".3g", optional=2),
    ]


def _fact(name: str, heading: str = "", form: Any = "", *, key: str = "", **more: Any) -> Column:
    return Column(heading, attrgetter(name), form, key or name, **more)


def _setting(name: str, heading: str = "", form: Any = "", **more: Any) -> Column:
    return Column(heading, methodcaller("setting", name), form, name, **more)


def _mean(name: str, key: str) -> Column:
    return Column("", methodcaller("mean_of", name), key=key)


def _varied(name: str) -> Column:
    key = "" if name in SETTINGS else name
    return Column(name, lambda line: line.varied.get(name), value_words, key)


def table_csv(table: Sequence[Line]) -> str:
    """The aggregated table, shares in 0..1."""
    return as_csv(records(columns_of(table), table), otherwise="label")


def comparison_table(table: Sequence[Line]) -> Table:
    """One row a line, in groups of one epsilon target, without columns that say nothing."""
    columns = [
        one
        for one in columns_of(table)
        if any(one.shown(line) != DULL.get(one.key) for line in table)
        and (one.key != "epsilon_outside" or any(map(_differs_outside, table)))
    ]
    if not any(line.varied.keys() - set(OWN) for line in table):
        columns = [
            replace(one, optional=one.optional * (one.optional <= CROWDED)) for one in columns
        ]
    colours = looks([(line.method, line.name) for line in table])
    return make_table(
        columns,
        table,
        style=_style,
        colour=lambda line: colours[line.name][0],
        group=lambda line: (
            "no epsilon target"
            if line.epsilon_target is None
            else f"epsilon {line.epsilon_target:g}"
        ),
    )


def _style(line: Line) -> RowKind:
    if line.private is False:
        return "no-epsilon"
    return "reference" if line.method == PROBE else ""


def _score(line: Line) -> str:
    if line.mean is None:
        return "--"
    return score_words(line) + (f" {CHANCE_MARK}" if line.beats_chance is False else "")


def _seeds(line: Line) -> str:
    return "/".join(dict.fromkeys((str(len(line.done)), str(len(line.runs)))))


def _epsilon(line: Line) -> str:
    if line.private is None:
        return "--" if line.epsilon_target is None else f"({line.epsilon_target:g})"
    return epsilon_words(line.epsilon or 0.0) if line.private else NOT_PRIVATE


def _outside(line: Line) -> str:
    outside = line.epsilon_outside
    return "--" if outside is None or not line.private else epsilon_words(outside)


def _differs_outside(line: Line) -> bool:
    """Whether a reader outside has a smaller epsilon than the clients of a sum."""
    return _outside(line) != "--" and line.epsilon_outside != line.epsilon


def notes(table: Sequence[Line]) -> list[str]:
    """What the columns and marks mean, in sentences."""
    runs = [run for line in table for run in line.runs]
    splits = ("the public test split", "held-out training rows, which no epsilon covers")
    rows = " or ".join(splits[held_out] for held_out in sorted({run.held_out for run in runs}))
    word = "Loss" if any(line.by_loss for line in table) else "Accuracy"
    found = [
        f"{word}: mean ± standard deviation over n seeds on {rows}; "
        "s.e.: its standard error in points, from the spread over seeds and the size of the test "
        "split.",
        "Uplink: payload of one client in one round; saved: how many times smaller it is than a "
        "dense update.",
    ]
    units = {line.unit.name for line in table}
    found += [unit.meaning for unit in UNITS.values() if unit.level and unit.name in units]
    if any(line.varied for line in table):
        found.append(
            "The best of these settings is chosen on these rows: fedlsg compare --search chooses "
            "on other rows."
        )
    found += trust_words(line.trust for line in table)
    if any(map(_differs_outside, table)):
        found.append(
            "Epsilon is against those who know most, under trust=secure the colluders of a sum "
            "with the server; outside: the epsilon against a reader of the weights alone."
        )
    if any(map(_rho, table)):
        found.append(f"rho: norm of a step's noise over the clip norm. {RHO_MEANING}")
    links = dict.fromkeys(run.link for line in table if line.transfer for run in line.runs)
    found += [
        f"Transfer: seconds that the messages of a run would take on {link}."
        for link in links
        if link
    ]
    if any(line.over_probe is not None for line in table):
        found.append("Over probe: points above the private linear probe at the same epsilon.")
    if any(line.beats_chance is False for line in table):
        levels = sorted({line.chance.level for line in table if line.chance is not None})
        found.append(f"{CHANCE_NOTE} ({', '.join(f'{100 * level:.1f} %' for level in levels)}).")
    return found


def table_markdown(table: Sequence[Line], more: Sequence[str] = ()) -> str:
    """A Markdown table, its notes and ``more`` of them, and what did not finish."""
    details = {**variants(table), **unfinished(table)}
    parts = [comparison_table(table).markdown, *notes(table), *more, *([""] if details else [])]
    parts += [f"- `{name}`: {cell_text(text)}" for name, text in details.items()]
    return "\n".join(parts) + "\n"


def variants(table: Sequence[Line]) -> Mapping[str, str]:
    """The settings that numbered labels stand for."""
    details = {line.label: line.runs[0].detail for line in table}
    return {label: detail for label, detail in details.items() if detail not in label}


def unfinished(table: Sequence[Line]) -> Mapping[str, str]:
    """Why a run is not in the means, by its name."""
    return {run.name: _state(run) for line in table for run in line.runs if not run.done}


def _state(run: Result) -> str:
    if run.reason:
        return f"{run.status}: {run.reason}"
    return f"{run.status} after {len(run.rows)} rounds" if run.rows else run.status


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
    """On the finished private lines, the largest epsilon first; then on the best without
    privacy.
    """
    done = [line for line in table if line.done]
    if not done:
        return ["No run is finished."]
    groups = grouped(
        (line for line in done if line.private),
        lambda line: (
            line.task,
            line.epsilon_target,
            line.unit.name,
            line.trust,
            line.setting("delta"),
        ),
    )
    tasks, deltas = ({of(line) for line in done} for of in (attrgetter("task"), _delta))
    ascending = sorted(groups.values(), key=lambda own: own[0].epsilon_target or math.inf)
    said = [
        _group(own, f" on {own[0].task[0]}" if len(tasks) > 1 else "", len(deltas) > 1)
        for own in reversed(ascending[-GROUPS:])
    ]
    free = [line for line in done if not line.private]
    if free:
        best = _best(free)
        without = "Without privacy" if groups else "No run is private"
        said.append(f"{without}: {best.name}, {_percent(best)}.")
    if any(run.held_out for line in done for run in line.done):
        said[0] += f" {HELD_OUT}"
    return said


def _group(own: Sequence[Line], on: str, deltas: bool) -> str:
    """Sentences on lines of one epsilon, ``on`` a workload; with its delta where ``deltas``
    differ.
    """
    best, first = _best(own), own[0]
    spent = max(line.epsilon or 0.0 for line in own)
    target = first.epsilon_target
    epsilon = f"at most {epsilon_words(spent)}" if target is None else f"{target:g}"
    epsilon += f" and delta {_delta(first):g}" if deltas else ""
    level = f", at {first.unit.level}" if first.unit.level else ""
    at = f"At epsilon {epsilon}{level}{OF.get(first.trust, '')}{on}"
    if all(line.beats_chance is False for line in own):
        return f"{at} no method is better than guessing."
    what = "lowest mean loss" if best.by_loss else "highest mean accuracy"
    text = f"{at}, {best.name} has the {what}, {_result(best)}{_doubt(best, own)}."
    sent = [line for line in own if line.saved and line.method != PROBE]
    fewest = max(sent, key=lambda line: line.saved or 0.0, default=best)
    if fewest.method != best.method:
        text += f" {fewest.name} sends the fewest bytes: {_result(fewest)}."
    return text


def _best(own: Sequence[Line]) -> Line:
    return min(own, key=attrgetter("deficit"))


def _percent(line: Line) -> str:
    return score_words(line) + ("" if line.by_loss else " %")


def _result(line: Line) -> str:
    """The score, and how the bytes compare."""
    return ", ".join(filter(None, (_percent(line), fewer_bytes(line.saved))))


def _doubt(best: Line, own: Sequence[Line]) -> str:
    """Why the lead over the next line may be chance, paired by seed.

    Empty if it is larger than its error, or nothing is next.
    """
    others = [line for line in own if line is not best]
    if not others:
        return ""
    second = _best(others)
    one, other = (
        {run.settings.get("seed"): score for run, score in zip(line.done, line.scores, strict=True)}
        for line in (best, second)
    )
    leads = [one[seed] - other[seed] for seed in one.keys() & other.keys()]
    if len(leads) < 2:
        return f" (one seed in common with {second.name}, so the lead may be chance)"
    error = statistics.stdev(leads) / math.sqrt(len(leads))
    unsure = abs(statistics.fmean(leads)) < ERRORS * error
    return f" (its lead over {second.name} is within {ERRORS:g} standard errors)" if unsure else ""
