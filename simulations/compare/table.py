"""The lines of a comparison as a table, for pages, terminals, CSV and Markdown; and its result in sentences.

The sentences name the best mean and the fewest bytes at each epsilon, and what is not sure. A mean that leads is the
highest mean, no more: it is said whether its lead over the next one is larger than its standard error, paired by seed.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

from fedlsg.setting.units import EXAMPLE, UNITS
from simulations.compare.lines import PROBE, Line, measured, score_words, value_words
from simulations.plan.advice import RHO_MEANING
from simulations.report.colours import looks
from simulations.report.facts import trust_words
from simulations.report.page import RowKind, Table, cell_text
from simulations.report.table import Column, make_table, records
from simulations.report.words import NOT_PRIVATE, epsilon_words, fewer_bytes, human_bytes
from simulations.rundir.results import as_csv
from simulations.workloads.base.split import STANDARD_ERRORS

CHANCE_MARK = "†"
CHANCE_NOTE = f"{CHANCE_MARK} not better than guessing by {STANDARD_ERRORS:g} standard errors"


RARE = frozenset({"rank", "sparsity", "rho", "over_linear_probe", "transfer_seconds"})
"""Columns that a page leaves out if no line says anything there."""
SETTINGS = ("workload", "model", "rank", "sparsity", "delta")


def columns_of(table: Sequence[Line]) -> list[Column]:
    """Every fact of a line: in tables under its heading, in table.csv under its key."""
    more = [name for name in dict.fromkeys(name for line in table for name in line.varied) if name not in OWN]
    by_loss = any(line.by_loss for line in table)
    score = measured(table) if by_loss else "accuracy, %"

    def less(place: int) -> int:
        """Whether a narrow terminal leaves a column out for settings that are varied."""
        return place if more else 0

    def percent(name: str, form: str) -> Callable[[Any], str]:
        return lambda line: "--" if (share := getattr(line, name)) is None else format(100 * share, form)

    def of(name: str, heading: str = "", form: str | Callable[[Any], str] = "", key: str = "", **more: Any) -> Column:
        return Column(heading, attrgetter(name), form, key or name, **more)

    def setting(name: str, heading: str = "", form: str | Callable[[Any], str] = "", optional: int = 0) -> Column:
        return Column(heading, methodcaller("setting", name), form, name, optional=optional)

    return [
        of("label", "method"),
        of("method"),
        setting("workload"),
        setting("model"),
        setting("rank", "r", lambda rank: f"{rank or '--'}"),
        setting("sparsity", "p", "g", optional=less(6)),
        setting("delta"),
        *(Column(name, partial(_varied, name), value_words, "" if name in SETTINGS else name) for name in more),
        of("epsilon_target"),
        of("epsilon", "epsilon", key="epsilon_max", words=_epsilon),
        of("epsilon_outside", "outside", words=_outside),
        of("private"),
        of("unit", "unit"),
        of("trust", "trust"),
        of("rho", "rho", lambda rho: f"{rho:.2f}" if rho else "--", optional=less(4)),
        Column(score, attrgetter("mean"), words=_score, best="least" if by_loss else "most"),
        Column("", lambda line: None if line.by_loss else line.mean, key="accuracy_mean"),
        Column("", lambda line: None if line.by_loss else line.sd, key="accuracy_sd"),
        Column("", methodcaller("mean_of", "loss"), key="loss_mean"),
        of("standard_error", "s.e.", words=percent("standard_error", ".1f"), optional=1),
        Column("n", lambda line: len(line.done), key="n", words=_seeds),
        Column("", lambda line: len(line.runs), key="planned"),
        Column("", lambda line: None if line.chance is None else line.chance.level, key="chance"),
        of("beats_chance"),
        of("over_probe", "over probe", key="over_linear_probe", words=percent("over_probe", "+.1f"), optional=less(7)),
        of("uplink", "uplink", human_bytes, "uplink_bytes_per_client_round", optional=less(5), best="least"),
        of("saved", "saved", "{:.1f}x".format, "saved_ratio", optional=less(3), best="most"),
        of("total_uplink", key="uplink_bytes_total"),
        of("total_downlink", key="downlink_bytes_total"),
        of("transfer", "transfer, s", ".3g", "transfer_seconds", best="least"),
        of("seconds", key="wall_seconds"),
        of("training_seconds", "training, s", ".3g", optional=2),
    ]  # fmt: skip


OWN = ("rank", "sparsity", "unit", "trust", "rho", "epsilon")
"""Settings that have a column in every comparison."""


def table_csv(table: Sequence[Line]) -> str:
    """The aggregated table, shares in 0..1."""
    return as_csv(records(columns_of(table), table), otherwise="label")


def comparison_table(table: Sequence[Line]) -> Table:
    """One row a line, in groups of one epsilon target; columns in which no line says anything are left out."""
    columns = columns_of(table)
    silent = {one.key for one in columns if one.key in RARE and all(one.shown(line) == "--" for line in table)}
    silent |= {"trust"} if {line.trust for line in table} == {"client"} else set()
    silent |= {"unit"} if {line.unit for line in table} == {EXAMPLE.name} else set()
    silent |= set() if any(map(_differs_outside, table)) else {"epsilon_outside"}
    colours = looks([(line.method, line.name) for line in table])
    return make_table(
        [one for one in columns if one.key not in silent], table, style=_style,
        colour=lambda line: colours[line.name][0],
        group=lambda line: "no epsilon target" if line.epsilon_target is None else f"epsilon {line.epsilon_target:g}",
    )  # fmt: skip


def _style(line: Line) -> RowKind:
    if line.private is False:
        return "no-epsilon"
    return "reference" if line.method == PROBE else ""


def _varied(name: str, line: Line) -> Any:
    return line.varied.get(name)


def _score(line: Line) -> str:
    return "--" if line.mean is None else score_words(line) + (f" {CHANCE_MARK}" if line.beats_chance is False else "")


def _seeds(line: Line) -> str:
    done, planned = len(line.done), len(line.runs)
    return str(done) if done == planned else f"{done}/{planned}"


def _epsilon(line: Line) -> str:
    if line.private is None:
        return "--" if line.epsilon_target is None else f"({line.epsilon_target:g})"
    return NOT_PRIVATE if not line.private or line.epsilon is None else epsilon_words(line.epsilon)


def _outside(line: Line) -> str:
    return "--" if not line.private or line.epsilon_outside is None else epsilon_words(line.epsilon_outside)


def _differs_outside(line: Line) -> bool:
    """Whether a reader outside has a smaller epsilon than the clients of a sum."""
    return bool(line.private) and line.epsilon_outside is not None and line.epsilon_outside != line.epsilon


def notes(table: Sequence[Line]) -> list[str]:
    """What the columns and marks mean, in sentences."""
    kinds = {run.held_out for line in table for run in line.runs}
    splits = [] if kinds == {True} else ["the public test split"]
    splits += ["held-out training rows, which no epsilon covers"] if True in kinds else []
    word = "Loss" if any(line.by_loss for line in table) else "Accuracy"
    found = [
        f"{word}: mean ± standard deviation over n seeds on {' or '.join(splits)}; s.e.: its standard error in "
        "points, from the spread over seeds and the size of the test split.",
        "Uplink: payload of one client in one round; saved: how many times smaller it is than a dense update.",
    ]
    found += [unit.meaning for unit in UNITS.values() if unit.level and unit.name in {line.unit for line in table}]
    if any(line.varied for line in table):
        found.append(
            "The best of these settings is chosen on these rows: fedlsg compare --search chooses on other rows."
        )
    found += trust_words(line.trust for line in table)
    if any(_differs_outside(line) for line in table):
        found.append(
            "Epsilon is against those who know most, under trust=secure the colluders of a sum with the server; "
            "outside: the epsilon against a reader of the weights alone."
        )
    if any(line.rho for line in table):
        found.append(f"rho: norm of a step's noise over the clip norm. {RHO_MEANING}")
    links = dict.fromkeys(run.link for line in table if line.transfer is not None for run in line.runs if run.link)
    found += [f"Transfer: seconds that the messages of a run would take on {link}." for link in links]
    if any(line.over_probe is not None for line in table):
        found.append("Over probe: points above the private linear probe at the same epsilon.")
    if any(line.beats_chance is False for line in table):
        levels = sorted({line.chance.level for line in table if line.chance is not None})
        found.append(f"{CHANCE_NOTE} ({', '.join(f'{100 * level:.1f} %' for level in levels)}).")
    return found


def table_markdown(table: Sequence[Line], more: Sequence[str] = ()) -> str:
    """A Markdown table, its notes and ``more`` of them, and what did not finish."""
    details = {**variants(table), **unfinished(table)}
    parts = [comparison_table(table).markdown, *notes(table), *more]
    parts += ["", *(f"- `{name}`: {cell_text(text)}" for name, text in details.items())] if details else []
    return "\n".join(parts) + "\n"


def variants(table: Sequence[Line]) -> Mapping[str, str]:
    """The settings that numbered labels stand for."""
    details = {line.label: line.runs[0].detail for line in table}
    return {label: detail for label, detail in details.items() if detail and detail not in label}


def unfinished(table: Sequence[Line]) -> Mapping[str, str]:
    """Why a run is not in the means, by its name."""
    runs = [run for line in table for run in line.runs]
    return {
        run.name: f"{run.status}: {run.reason}"
        if run.reason
        else run.status + (f" after {len(run.rows)} rounds" if run.rows else "")
        for run in runs
        if not run.done
    }


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
        groups.setdefault((line.task, line.epsilon_target, line.unit, line.trust, line.setting("delta")), []).append(
            line
        )
    named, deltas = (
        len({of(line) for line in done}) > 1 for of in (lambda line: line.task, methodcaller("setting", "delta"))
    )
    largest = sorted(groups.values(), key=lambda own: own[0].epsilon_target or math.inf)[-GROUPS:][::-1]
    said = [_group(own, named, deltas) for own in largest]
    free = [line for line in done if not line.private]
    if free:
        best = _best(free)
        said.append(
            f"{'Without privacy' if groups else 'No run is private'}: {best.name}, {_result(best, sent=False)}."
        )
    if any(run.held_out for line in done for run in line.done):
        said[0] += f" {HELD_OUT}"
    return said


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
    text = f"{at}, {best.name} has the {what}, {_result(best)}{_doubt(best, own)}."
    sent = [line for line in own if line.saved and line.method != PROBE]
    fewest = max(sent, key=lambda line: line.saved or 0.0, default=best)
    if fewest is not best and fewest.method != best.method:
        text += f" {fewest.name} sends the fewest bytes: {_result(fewest)}."
    return text


def _best(own: Sequence[Line]) -> Line:
    return min(own, key=lambda line: (line.mean or 0.0) * (1 if line.by_loss else -1))


def _result(line: Line, *, sent: bool = True) -> str:
    """The score, and how the bytes compare."""
    said = fewer_bytes(line.saved) if sent else ""
    return score_words(line) + ("" if line.by_loss else " %") + (f", {said}" if said else "")


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
    seeds = [[run.settings.get("seed") for run in line.done] for line in (one, other)]
    first, second = (dict(zip(own, line.scores, strict=False)) for own, line in zip(seeds, (one, other), strict=True))
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys(), key=str)]
    if len(differences) < 2:
        return None
    return statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
