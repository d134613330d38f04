"""The lines of a comparison as a table, for pages, terminals, CSV and Markdown; and in sentences.

The sentences name the best mean and the fewest bytes at each epsilon, and what is not sure. They
state the lead of the best mean over the next one, with its standard error, paired by seed, and
whether it may be chance.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter

from fedlsg.config.units import EXAMPLE, unit_named
from fedlsg.simulations.compare.results.line_words import (
    Line,
    mean_of,
    number_of,
    score_words,
    value_words,
)
from fedlsg.simulations.compare.results.lines import PROBE, RIVALS, paired, quantile
from fedlsg.simulations.compare.results.pandas_library import pd
from fedlsg.simulations.planning.advice.remarks import RHO_IS, RHO_MEANING
from fedlsg.simulations.report.drawing.colours import looks
from fedlsg.simulations.report.pages.facts import trust_words
from fedlsg.simulations.report.pages.page import RowKind, Table
from fedlsg.simulations.report.pages.table import Column, make_table
from fedlsg.simulations.report.words import (
    NOT_PRIVATE,
    counted,
    epsilon_words,
    fewer_bytes,
    human_bytes,
)
from fedlsg.simulations.storage.results import Result
from fedlsg.simulations.workloads.base.split import STANDARD_ERRORS

CHANCE_MARK = "†"
TIE_MARK = "≈"
TIE_NOTE = (
    "Behind: how far a mean is behind the best one of its epsilon, paired by seed, and in brackets "
    f"the standard error (s.e.) of this difference; {TIE_MARK} it may be chance (Student's t at "
    "95 %, each line by itself). Pages mark every mean that may be the best."
)
TWO = 2
"""The least seeds with a spread; with so few, hardly any difference is sure."""
CHANCE_NOTE = f"{CHANCE_MARK} not better than guessing by {STANDARD_ERRORS:g} standard errors"
SETTINGS = ("workload", "model", "rank", "sparsity", "delta")
"""Settings that have a column in every table.csv."""
FILED = [
    *("epsilon_target", "epsilon_max", "epsilon_outside", "private", "unit", "trust", "rho"),
    *("accuracy_mean", "accuracy_sd", "loss_mean", "standard_error", "n", "planned", "chance"),
    *("beats_chance", "over_linear_probe", "uplink_bytes_per_client_round", "saved_ratio"),
    *("uplink_bytes_total", "downlink_bytes_total", "transfer_seconds", "wall_seconds"),
    "training_seconds",
    *("behind", "behind_standard_error", "paired_seeds", "may_be_best"),
    *("epsilon_with_choosing", "delta_with_choosing", "uplink_wire_per_client_round"),
]
"""The last columns of every table.csv."""
OWN = {"rank", "sparsity", "unit", "trust", "rho", "epsilon"}
"""Settings that have a column in every comparison."""
USUAL = {"trust": "client", "unit": EXAMPLE.name} | dict.fromkeys(
    (
        *("rank", "sparsity", "rho", "behind", "over_linear_probe", "transfer_seconds"),
        *("uplink_wire_per_client_round", "epsilon_with_choosing"),
    ),
    "--",
)
"""A page leaves out a column if it has this value for every line; by its name in table.csv."""


def varied_names(table: pd.DataFrame) -> list[str]:
    """The varied settings, in the order of the grid."""
    return list(
        dict.fromkeys(
            name for varied in sorted(table.varied, key=len, reverse=True) for name in varied
        )
    )


def setting_names(table: pd.DataFrame) -> list[str]:
    """The settings with a column in this comparison: varied ones, then those of own recipes."""
    own = dict.fromkeys(name for settings in table.own_settings for name in settings)
    return list(dict.fromkeys((*varied_names(table), *own)))


def table_csv(table: pd.DataFrame) -> str:
    """The aggregated table, shares in 0..1."""
    return str(_filed(table).to_csv(index=False))


def frame_of(table: pd.DataFrame) -> pd.DataFrame:
    """The aggregated table as a frame: numbers are numbers, and NaN if they are not known."""
    filed = _filed(table)
    return filed.where(filed.notna(), math.nan).reset_index(drop=True).infer_objects()


def _filed(table: pd.DataFrame) -> pd.DataFrame:
    """The columns of table.csv."""
    more = [name for name in setting_names(table) if name not in (*SETTINGS, *OWN)]
    return table[["label", "method", *SETTINGS, *more, *FILED]]


def columns_of(table: pd.DataFrame) -> list[Column]:
    """All columns of the table for people; their values are columns of ``lines``."""
    return [
        Column("method", "label"),
        Column("rank", "rank", lambda rank: f"{rank or '--'}"),
        Column("sparsity", "sparsity", "g", optional=6),
        *(Column(name, name, value_words) for name in setting_names(table) if name not in OWN),
        Column("epsilon", "epsilon_max", words=_epsilon),
        Column("with choosing", "epsilon_with_choosing", epsilon_words),
        Column("outside", "epsilon_outside", words=_outside),
        Column("unit", "unit"),
        Column("trust", "trust"),
        Column("rho", "rho", lambda rho: f"{rho:.2f}" if rho else "--", optional=2),
        Column(mean_of(table.itertuples()), "mean", words=_score, best=attrgetter("may_be_best")),
        Column("behind (s.e.)", "behind", words=_behind),
        Column("n", "n", words=_seeds),
        Column("over probe", "over_linear_probe", lambda share: f"{100 * share:+.1f}", optional=7),
        Column("uplink", "uplink_bytes_per_client_round", human_bytes, optional=5, best="least"),
        Column("saved", "saved_ratio", "{:.1f}x".format, optional=3, best="most"),
        Column("wire", "uplink_wire_per_client_round", human_bytes, optional=1),
        Column("transfer, s", "transfer_seconds", ".3g", best="least"),
        Column("training, s", "training_seconds", ".3g", optional=1),
    ]


def comparison_table(table: pd.DataFrame) -> Table:
    """One row a line, in groups of one epsilon target, without columns that say nothing."""
    rows = list(table.itertuples())
    columns = informative(columns_of(table), rows)
    colours = looks(list(zip(table.method, table.name, strict=True)))
    return make_table(
        columns,
        rows,
        style=_style,
        colour=lambda line: colours[line.name][0],
        group=epsilon_group,
    )


def informative(columns: Iterable[Column], rows: Sequence[Line]) -> list[Column]:
    """The columns that have another than the usual value in some of these lines."""
    kept = []
    for column in columns:
        values = set(map(column.shown, rows))
        is_same_outside = column.value == "epsilon_outside" and not any(map(_differs_outside, rows))
        if values != {USUAL.get(str(column.value))} and not is_same_outside:
            kept.append(column)
    return kept


def epsilon_group(line: Line) -> str:
    """The heading of the rows that a line is among."""
    target = line.epsilon_target
    return "no epsilon target" if target is None else f"epsilon {target:g}"


def _style(line: Line) -> RowKind:
    if line.private is False:
        return "no-epsilon"
    return "reference" if line.method == PROBE else ""


def _score(line: Line) -> str:
    if line.mean is None:
        return "--"
    return score_words(line) + (f" {CHANCE_MARK}" if line.beats_chance is False else "")


def _behind(line: Line) -> str:
    """How far a line is behind the best one, with the standard error of the difference."""
    if line.behind is None:
        return "--"
    if not line.behind and not line.behind_standard_error:
        return "best"
    error = number_of(line, line.behind_standard_error)
    mark = f" {TIE_MARK}" if line.may_be_best else ""
    return number_of(line, line.behind) + (f" ({error})" if error else "") + mark


def _seeds(line: Line) -> str:
    """Finished runs, and planned ones if these are more: "2/3"."""
    return "/".join(dict.fromkeys((str(line.n), str(line.planned))))


def _epsilon(line: Line) -> str:
    if line.private is None:
        return "--" if line.epsilon_target is None else f"({line.epsilon_target:g})"
    return epsilon_words(line.epsilon_max) if line.private else NOT_PRIVATE


def _outside(line: Line) -> str:
    outside = line.epsilon_outside
    return "--" if outside is None or not line.private else epsilon_words(outside)


def _differs_outside(line: Line) -> bool:
    """Whether a reader outside has a smaller epsilon than the clients of a sum."""
    return _outside(line) != "--" and line.epsilon_outside != line.epsilon_max


def notes(table: pd.DataFrame) -> list[str]:
    """Sentences about the columns and marks of the table, and limits of its numbers."""
    runs = runs_of(table)
    splits = ("the public test split", "held-out training rows, which no epsilon covers")
    rows = " or ".join(splits[held_out] for held_out in sorted({run.held_out for run in runs}))
    moved = dict.fromkeys(run.link for run in runs if run.link and run.transfer)
    guesses = sorted(set(table.chance.dropna()))
    is_needed = {
        f"{'Loss' if table.by_loss.any() else 'Accuracy'}: mean ± standard deviation (s.d.) over n "
        f"seeds on {rows}.": True,
        "With choosing: the epsilons of choosing the settings of a line and of all its runs, added "
        f"up; also delta, to {_largest(table.delta_with_choosing):g} (basic composition).": any(
            table.epsilon_with_choosing.notna()
        ),
        TIE_NOTE: any(table.behind.notna()),
        "Several runs of one seed count once, by their mean.": any(
            sum(run.done for run in line.runs) > line.n for line in table.itertuples()
        ),
        **_of_two_seeds(table),
        **_of_one_seed(table),
        "Uplink: payload of one client in one round; saved: how many times smaller it is than a "
        "dense update; wire: the uplink with what its message adds.": True,
        **{unit.meaning: bool(unit.level) for unit in map(unit_named, table.unit.unique())},
        "The best of these settings is chosen on these rows: fedlsg compare --search chooses on "
        "other rows.": any(table.varied),
        **dict.fromkeys(trust_words(table.trust), True),
        "Epsilon is against those who know most, under trust=secure the colluders of a sum with "
        "the server; outside: the epsilon against a reader of the weights alone.": any(
            map(_differs_outside, table.itertuples())
        ),
        f"rho: {RHO_IS}. {RHO_MEANING}": any(table.rho),
        **{
            f"Transfer: seconds that the messages of a run would take on {link}.": True
            for link in moved
        },
        "Over probe: points above the private linear probe at the same epsilon.": any(
            table.over_linear_probe.notna()
        ),
        f"{CHANCE_NOTE} ({', '.join(f'{100 * level:.1f} %' for level in guesses)}).": any(
            table.beats_chance.eq(False)
        ),
    }
    return [words for words, needed in is_needed.items() if needed]


def _largest(numbers: pd.Series) -> float:
    return float(max(numbers.dropna(), default=0.0))


def _of_two_seeds(table: pd.DataFrame) -> dict[str, bool]:
    """A sentence about differences over two seeds, if all lines have two."""
    if not any(table.behind.notna()) or {*table.n[table.n > 0]} != {TWO}:
        return {}
    two, three = (f"{quantile(seeds):.1f}" for seeds in (TWO, TWO + 1))
    return {
        f"Two seeds separate hardly anything: a difference is no chance from {two} standard errors "
        f"on, with three seeds from {three}: --seeds 3 or more.": True
    }


def _of_one_seed(table: pd.DataFrame) -> dict[str, bool]:
    """A sentence about the error of a line with one seed, if there is one."""
    errors = table.standard_error[table.n == 1].dropna()
    words = (
        "One seed shows no spread. The size of the test split alone gives an accuracy a standard "
        f"error of up to {100 * errors.max():.1f} points."
    )
    return {words: True} if len(errors) else {}


def runs_of(table: pd.DataFrame) -> list[Result]:
    """The runs of all lines, in their order."""
    return [run for runs in table.runs for run in runs]


def variants(table: pd.DataFrame) -> Mapping[str, str]:
    """The settings that numbered labels stand for."""
    details = {line.label: line.runs[0].detail for line in table.itertuples()}
    return {label: detail for label, detail in details.items() if detail not in label}


def unfinished(runs: Iterable[Result]) -> Mapping[str, str]:
    """Why runs are not in the means, by their names."""
    return {run.name: _state(run) for run in runs if not run.done}


def _state(run: Result) -> str:
    if run.reason:
        return f"{run.status}: {run.reason}"
    return f"{run.status} after {len(run.rows)} rounds" if run.rows else run.status


MAX_GROUPS = 3
"""The most epsilons that the sentences name, the largest ones."""
HELD_OUT = "No epsilon covers these accuracies: they were computed from private rows without noise."
OF = {
    "server": ", for weights at a trusted server",
    "secure": ", for secure sums, against their clients and the server",
    "aggregate": ", for sums that are assumed to be secure, against one of their clients",
}


def sentences(table: pd.DataFrame) -> list[str]:
    """Sentences about the finished private lines, the largest epsilon first, and the best others.

    The last sentence says what privacy costs compared with the best line without privacy.
    """
    done = table[table.n > 0]
    if done.empty:
        return ["No run is finished."]
    private = done.private.eq(True)
    groups = done[private].groupby(RIVALS, dropna=False, sort=False)
    several = done[["task", "delta"]].nunique() > 1
    largest = [list(own.itertuples()) for _, own in groups][-MAX_GROUPS:][::-1]
    said = list(chain.from_iterable(_group(own, *several) for own in largest))
    if not private.all():
        best = min(done[~private].itertuples(), key=attrgetter("deficit"))
        without = "Without privacy" if private.any() else "No run is private"
        said.append(f"{without}: {best.name}, {_percent(best)}{_price(best, done[private])}.")
    if any(run.held_out for run in runs_of(done) if run.done):
        said[0] += f" {HELD_OUT}"
    return said


def _price(free: Line, private: pd.DataFrame) -> str:
    """How far the best private line at the largest epsilon is behind the one without privacy.

    Empty if no line of the same task has an epsilon target, and for losses.
    """
    same = [
        line
        for line in private.itertuples()
        if line.task == free.task and line.epsilon_target is not None
    ]
    if not same or free.by_loss:
        return ""
    most = max(line.epsilon_target for line in same)
    best = min((line for line in same if line.epsilon_target == most), key=attrgetter("deficit"))
    points = 100 * (free.mean - best.mean)
    behind = "behind" if points >= 0 else "ahead of"
    return (
        f"; at epsilon {best.epsilon_target:g}, {best.name} is {abs(points):.1f} points {behind} it"
    )


def _group(own: Sequence[Line], tasks: bool, deltas: bool) -> list[str]:
    """Sentences about lines of one epsilon, the best first.

    tasks, deltas: whether the groups differ in them, so that each sentence has to name its own.
    """
    best, target = own[0], own[0].epsilon_target
    spent = epsilon_words(max(line.epsilon_max for line in own))
    at = f"At epsilon {f'at most {spent}' if target is None else f'{target:g}'}{_chosen(best)}"
    at += f" and delta {best.delta:g}" if deltas else ""
    at += f", at {best.level}" if best.level else ""
    at += OF.get(best.trust, "") + (f" on {best.task[0]}" if tasks else "")
    if all(line.beats_chance is False for line in own):
        return [f"{at} no method is better than guessing."]
    end = "highest" if best.more_is_better else "lowest"
    what = f"mean {'loss' if best.by_loss else 'accuracy'}"
    if len(own) == 1:
        return [f"{at}, {best.name} has a {what} of {_result(best, _over(best))}."]
    text = [f"{at}, {best.name} has the {end} {what}, {_result(best, _lead(*own[:2]))}."]
    sent = [line for line in own if line.saved_ratio and line.method != PROBE]
    fewest = max(sent, key=attrgetter("saved_ratio"), default=best)
    if fewest.method != best.method:
        text.append(f"{at}, {fewest.name} sends the fewest bytes: {_result(fewest)}.")
    return text


def _percent(line: Line) -> str:
    """The score of a line with its unit."""
    return score_words(line) + ("" if line.by_loss else " %")


def _result(line: Line, lead: str = "") -> str:
    """The score, its lead, and how the bytes compare with dense updates unless they are equal."""
    fewer = fewer_bytes(line.saved_ratio)
    words = (_percent(line) + lead, "" if " as many " in fewer else fewer)
    return ", ".join(filter(None, words))


def _chosen(line: Line) -> str:
    """The epsilon of a line with that of choosing its settings, in brackets; empty without."""
    if line.choosing_epsilon is None:
        return ""
    if line.choosing_epsilon == 0:
        return " (choosing its settings cost no privacy)"
    if line.epsilon_with_choosing is None:
        return f" (and {epsilon_words(line.choosing_epsilon)} for choosing its settings)"
    whole, runs = epsilon_words(line.epsilon_with_choosing), counted(len(line.runs), "run")
    return f" ({whole} with choosing its settings, over {runs})"


def _over(line: Line) -> str:
    """Over how many seeds its mean is, in brackets."""
    return f" (± s.d. over {line.n} seeds)" if line.n > 1 else " (one seed)"


def _lead(best: Line, second: Line) -> str:
    """The lead over the next line, paired by seed, its standard error, and if it may be chance."""
    lead, words = paired(second, best), "the lead may be chance"
    if not lead.seeds:
        return f" (no seed in common with {second.name}, so {words})"
    unit = "" if best.by_loss else " points"
    beyond = f"{number_of(best, abs(lead.behind))}{unit} "
    beyond += f"{'above' if best.more_is_better else 'below'} {second.name}"
    if lead.error is None:
        why = "one seed" if lead.seeds == 1 else f"exactly so in all {lead.seeds} seeds"
        return f", {beyond} ({why}, so {words})"
    paired_over = f"paired over {lead.seeds} seeds{f'; {words}' if lead.may_be_chance else ''}"
    return f", {beyond} with a standard error of {number_of(best, lead.error)} ({paired_over})"
