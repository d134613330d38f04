"""The table of a comparison, with pandas: runs that differ in their seed only are one line.

An accuracy is mean ± sample standard deviation over seeds, on the public test split: everywhere, in
tables, figures and files. How far a line is behind the best one of its epsilon is the mean
difference, paired by seed, with its own standard error. The standard error of a mean, and whether
it is better than guessing, are those of ``workloads.chance``. The numbers of a line are of its
finished runs. A number that one of these runs lacks is None.
"""

import math
from collections.abc import Iterable, Mapping
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from fedlsg import strategies
from fedlsg.config.directions import higher_is_better
from fedlsg.config.units import unit_in
from fedlsg.simulations.compare.grid.cells import OWN_RECIPE, grouped
from fedlsg.simulations.compare.grid.choosing import Choosing
from fedlsg.simulations.compare.results.line_words import Line, line_name
from fedlsg.simulations.compare.results.pandas_library import pd
from fedlsg.simulations.report.drawing.colours import canonical
from fedlsg.simulations.settings.settings import RUN, codec_settings
from fedlsg.simulations.storage.results import Result
from fedlsg.simulations.workloads.base.split import Chance, beats_chance, standard_error

PROBE = "linear-probe"
NAMING = ("rank", "sparsity")
"""Settings that the name of a line has, also where they are not varied."""
SAME = 0.01
"""Relative difference of epsilons that count as equal: calibration ends within it of its target."""
SMALLEST = 1e-9
"""Relative spread of differences up to which they are the same, but for rounding."""
TASK = ("workload", "dataset", "subset", "holdout", "public_rows")
"""What lines need in common to be compared: the evaluated rows of one workload."""
MEANS = {
    "loss": "loss_mean",
    "accuracy": "accuracy_mean",
    "uplink_bytes": "uplink_bytes_total",
    "downlink_bytes": "downlink_bytes_total",
    **{name: name for name in ("rho", "wall_seconds", "training_seconds", "transfer_seconds")},
}
"""Numbers of runs, and the column of their mean."""
RIVALS = ["task", "epsilon_target", "unit", "trust", "delta", "private"]
"""What lines have in common that are compared with each other."""
NUMBERS = [
    *MEANS,
    *("epsilon_max", "epsilon_outside", "uplink_bytes_dense", "downlink_bytes_dense"),
    *("uplink_bytes_wire", "messages"),
]
Labels = Mapping[str, str]
"""What figures and tables call a method, by its label or by the whole name of its line."""
NO_LABELS: Labels = MappingProxyType({})


def lines(
    results: Iterable[Result], labels: Labels = NO_LABELS, choosing: Choosing | None = None
) -> pd.DataFrame:
    """A row for each line: epsilon targets ascending, no target last, then the best mean first.

    labels: see ``relabelled``. choosing: the search that chose settings, where one did.
    A row has the columns of table.csv, shares in 0..1, and:
        runs: all its runs
        run: one of them, a finished one if there is one
        varied: the settings that its comparison varies
        own_settings: those that a recipe of the user's own declares
        settings: those of its name
        level: what its epsilon protects, if that is not one example
        by_loss: its workload has no accuracy, so scores are losses
        more_is_better: the best line is that of the highest score
        private: its finished runs have privacy, all of them; None if no run is finished
        scores: (seed, score) pairs
        mean, sd: of the scores
        height, spread: mean and sd as they are shown
        deficit: the best line has the lowest
        behind: how far it is behind the best of its rivals; None without a rival
        may_be_best: it is the best of its rivals, or behind it by what may be chance
        given_label: its label before ``labels``
        untouched: of chosen settings, that of the line without a search
        choosing_epsilon: what choosing its settings cost
    """
    runs = pd.DataFrame(map(_row, results), dtype=object)
    runs[NUMBERS] = runs[NUMBERS].astype(float)
    done = _scored(runs[runs.status == "done"])
    # the settings of a run are resolved once it has begun
    first = pd.concat([done, runs]).drop_duplicates("group").set_index("group")
    table = _with_means(first.drop(columns=NUMBERS), runs, done)
    scale = table.by_loss.map({True: 1.0, False: 100.0})
    table["height"], table["spread"] = scale * table["mean"], (scale * table.sd).fillna(0.0)
    table["more_is_better"] = table.by_loss.map(more_is_better)
    table["deficit"] = table.height.mask(table.more_is_better, -table.height)
    table["over_linear_probe"] = _over_probe(table)
    table = table.sort_values(["epsilon_target", "deficit", "name"])
    table = table.astype(object).where(table.notna(), None)
    table = table.assign(**_guesses(table), **_behind(table), **_in_all(table, choosing))
    return relabelled(table, labels)


def _scored(done: pd.DataFrame) -> pd.DataFrame:
    """Finished runs with their scores: losses if a run of the line has no accuracy."""
    lossy = done.accuracy.isna().groupby(done.group).transform("any")
    done = done.assign(by_loss=lossy, score=done.accuracy.mask(lossy, done.loss))
    done["scores"] = list(zip(done.seed, done.score, strict=True))
    return done


def _with_means(table: pd.DataFrame, runs: pd.DataFrame, done: pd.DataFrame) -> pd.DataFrame:
    """Lines with the means and sums of their finished runs: NaN without one, or where one lacks the
    number.
    """
    by = done.groupby("group")
    complete = by[NUMBERS].count().eq(by.size(), axis=0)
    means = by[NUMBERS].mean().where(complete).rename(columns=MEANS)
    sums = by[NUMBERS].sum()
    table = table.join(means[[*MEANS.values()]])
    return table.assign(
        name=list(map(line_name, table.label, table.settings, table.level)),
        by_loss=table.by_loss.eq(True),
        private=by.private.all(),
        runs=runs.groupby("group").run.agg(list),
        planned=runs.groupby("group").size(),
        n=by.size().reindex(table.index, fill_value=0),
        scores=by.scores.agg(list),
        mean=by.score.mean(),
        sd=by.score.std(),
        accuracy_sd=by.accuracy.std().where(complete.accuracy),
        epsilon_max=by.epsilon_max.max(),
        epsilon_outside=by.epsilon_outside.max().where(complete.epsilon_outside),
        uplink_bytes_per_client_round=_ratio(sums.uplink_bytes, sums.messages),
        uplink_wire_per_client_round=_ratio(
            sums.uplink_bytes_wire.where(complete.uplink_bytes_wire), sums.messages
        ),
        saved_ratio=_ratio(sums.uplink_bytes_dense, sums.uplink_bytes),
        saved_both=_ratio(
            sums.uplink_bytes_dense + sums.downlink_bytes_dense,
            sums.uplink_bytes + sums.downlink_bytes,
        ),
    )


class Paired(NamedTuple):
    """How far a line is behind another one: the mean difference over the seeds of both.

    behind: below 0 where it is ahead. error: its standard error over ``seeds``; of seeds that all
    differ by the same, that of the test rows. None of less than two seeds, and where neither is
    known. Without a seed in common it is the difference of the means.
    """

    behind: float
    error: float | None
    seeds: int

    @property
    def may_be_chance(self) -> bool:
        """Whether the difference is none at 95 %, by Student's t; always where no error is
        known.
        """
        return self.error is None or abs(self.behind) <= quantile(self.seeds) * self.error


@cache
def quantile(seeds: int) -> float:
    """Standard errors that a difference over so many seeds needs to be no chance, at 95 %: of
    Student's t, which is 12.7 for two seeds, 4.3 for three and 2 for many.
    """
    from scipy.stats import t  # half a second that a start need not wait for

    return float(t.ppf(0.975, seeds - 1))


def paired(line: Line, best: Line) -> Paired:
    """How far a finished line is behind ``best``, paired by seed."""
    lags = (pd.Series(dict(best.scores)) - pd.Series(dict(line.scores))).dropna()
    sign = 1 if best.more_is_better else -1
    behind = lags.mean() if len(lags) else best.mean - line.mean
    return Paired(
        sign * float(behind), _error_of(lags, None if best.by_loss else best.run.chance), len(lags)
    )


def _error_of(lags: pd.Series, chance: Chance | None) -> float | None:
    """Standard error of the mean of paired differences, one for each seed.

    Few seeds may differ by the same number of test rows by chance, and no spread proves nothing.
    Then it is that of the N test rows: two models whose accuracies differ by d disagree on a share
    d of the rows at least, so the difference of one seed has a variance of d (1 - d) / N at least.
    """
    if len(lags) < 2:
        return None
    spread, apart = float(lags.sem()), min(abs(float(lags.mean())), 1.0)
    if spread > SMALLEST * apart or not apart:
        return spread
    if chance is None:
        return None
    return math.sqrt(apart * (1 - apart) / (chance.test_examples * len(lags)))


def _in_all(table: pd.DataFrame, choosing: Choosing | None) -> dict[str, pd.Series]:
    """What choosing the settings of a line and all its runs cost together (basic composition): sums
    of epsilons and of deltas. None without a search, and for a line that claims no epsilon.
    """
    untouched = choosing.untouched if choosing else {}
    labels = list(table.label)
    epsilons, deltas, chosen = list[Any](), list[Any](), list[Any]()
    for line in table.itertuples():
        own = choosing if choosing and line.label in untouched else None
        spent = [each for run in line.runs if (each := _spent(run)) is not None]
        chosen.append(own.epsilon if own else None)
        # without a finished run nothing contradicts the claim of its settings
        claims_epsilon = line.private is not False and len(spent) == len(line.runs)
        if choosing and claims_epsilon:
            epsilons.append(math.fsum([own.epsilon if own else 0.0, *spent]))
            deltas.append(len(spent) * (line.delta or 0.0) + (own.delta if own else 0.0))
        else:
            epsilons.append(None)
            deltas.append(None)
    columns = {
        "given_label": labels,
        "untouched": list(map(untouched.get, labels)),
        "choosing_epsilon": chosen,
        "epsilon_with_choosing": epsilons,
        "delta_with_choosing": deltas,
    }
    return {name: pd.Series(own, table.index, dtype=object) for name, own in columns.items()}


def _spent(run: Result) -> float | None:
    """The epsilon of a run: what it spent, or what it will have spent where it is not finished."""
    known = [each for each in (run.epsilon_max, run.epsilon_target) if each is not None]
    return run.epsilon_max if run.done else max(known, default=None)


def _behind(table: pd.DataFrame) -> dict[str, pd.Series]:
    """The lag of each finished line, and whether it may be the best; None without a rival."""
    done = [line for line in table.itertuples() if line.n]
    lags: dict[str, Paired] = {}
    for rivals in grouped(done, attrgetter(*RIVALS)).values():
        best = rivals[0]  # the table has the best line first
        lags |= {line.Index: paired(line, best) for line in rivals if len(rivals) > 1}
    lag_of_each = [lags.get(group) for group in table.index]
    columns = {
        "behind": [lag and lag.behind for lag in lag_of_each],
        "behind_standard_error": [lag and lag.error for lag in lag_of_each],
        "paired_seeds": [lag and lag.seeds for lag in lag_of_each],
        "may_be_best": [lag and lag.may_be_chance for lag in lag_of_each],
    }
    return {name: pd.Series(own, table.index, dtype=object) for name, own in columns.items()}


def relabelled(table: pd.DataFrame, labels: Labels) -> pd.DataFrame:
    """The lines under the names that a user gives them, by their labels or their whole names.

    A given name replaces the settings in a line's name, too; of several lines with one label it is
    followed by the settings in which they differ.
    """
    if not labels:
        return table
    variants = table.settings.groupby(table.label).agg(list)
    names, short = [], []
    for line in table.itertuples():
        differing = {
            name: value
            for name, value in line.settings.items()
            if any(other.get(name) != value for other in variants[line.label])
        }
        given = labels.get(line.label)
        usual = line.name if given is None else line_name(given, differing)
        names.append(labels.get(line.name, usual))
        short.append(labels.get(line.name, line.label if given is None else given))
    return table.assign(name=names, label=short)


def added_labels(kept: Labels, given: Labels) -> dict[str, str]:
    """The names that a folder has, and those that are given now, which replace them.

    Raises ValueError for a given name that another method of the folder has.
    """
    for key, name in given.items():
        if other := [one for one, taken in kept.items() if taken == name and one not in given]:
            raise ValueError(f"--label {key}={name}: {other[0]} is called that in this folder")
    return {**kept, **given}


def full_labels(labels: Labels, known: Iterable[str]) -> dict[str, str]:
    """The names that are given, by labels among the ``known`` ones: of a recipe of the user's own,
    its file will do.
    """
    there = {*known}
    whole = {key: f"{key}{OWN_RECIPE}" for key in labels}
    return {
        whole[key] if key not in there and whole[key] in there else key: name
        for key, name in labels.items()
    }


def check_labels(labels: Labels, known: Iterable[str]) -> None:
    """Raise ValueError for a name that is given to nothing ``known``, labels or whole names of
    lines, and for one that another of them has.
    """
    there = [*dict.fromkeys(known)]
    for key, name in labels.items():
        if not any(key == one or key.startswith(f"{one} (") for one in there):
            raise ValueError(f"--label {key}: nothing is called that; known: {', '.join(there)}")
        if name != key and name in there:
            raise ValueError(f"--label {key}={name}: another method is called {name}")


def more_is_better(by_loss: bool) -> bool:
    """Whether the best score is the highest: of losses, or of accuracies."""
    return bool(higher_is_better("loss" if by_loss else "accuracy"))


def _row(run: Result) -> dict[str, Any]:
    """What lines are made of: the facts of a run, and its numbers."""
    settings, summary, unit = run.settings, run.summary, unit_in(run.settings)
    target, facts = run.epsilon_target, run.as_row()
    own = {name: value for name, value in _own_settings(run).items() if name not in facts}
    return facts | {
        **own,
        **dict(run.varied),
        "run": run,
        "group": repr(run.group or run.name),
        "varied": dict(run.varied),
        "own_settings": own,
        "settings": {name: settings.get(name) for name in NAMING} | dict(run.varied),
        "task": tuple(map(settings.get, TASK)),
        "epsilon_target": math.nan if target is None else target,
        "trust": str(settings.get("trust") or "client"),
        "unit": unit.name,
        "level": unit.level,
        "delta": settings.get("delta"),
        "rho": summary.get("rho"),
        "uplink_bytes_wire": summary.get("uplink_bytes_wire"),
        "training_seconds": summary.get("seconds", {}).get("training"),
        "messages": run.messages,
    }


def _own_settings(run: Result) -> dict[str, Any]:
    """What the settings of a recipe of the user's own have in this run; its code is not run."""
    if not strategies.is_users(run.method):
        return {}
    shared = {*RUN, *codec_settings(), *strategies.common_settings()}
    return {name: value for name, value in run.settings.items() if name not in shared}


def _ratio(above: pd.Series, below: pd.Series) -> pd.Series:
    return above / below.where(below > 0)


def _over_probe(table: pd.DataFrame) -> pd.Series:
    """Means above the best private linear probe of the same task, unit and epsilon target."""
    probe, rivals = table.method == PROBE, [table.task, table.unit, table.epsilon_target]
    means = table["mean"].where(probe & table.private.eq(True))
    best = means.groupby(rivals, dropna=False).transform("max")
    return (table["mean"] - best).mask(probe | table.by_loss)


def _guesses(table: pd.DataFrame) -> dict[str, list[Any]]:
    """What the accuracy of guessing says of each line; None if it is not on record."""
    known = []
    for run, pairs in zip(table.run, table.scores, strict=True):
        known.append((run.chance, [score for _, score in pairs or ()]))
    return {
        "chance": [chance and chance.level for chance, _ in known],
        "standard_error": [chance and standard_error(own, chance) for chance, own in known],
        "beats_chance": [chance and beats_chance(own, chance) for chance, own in known],
    }


def in_legend_order(table: pd.DataFrame) -> pd.DataFrame:
    """Lines in the order of every legend: by method, then by name, the smallest epsilon first."""
    legend = list(zip(map(canonical, table.method), table.name, strict=True))
    return table.assign(legend=legend).sort_values("legend", kind="stable")
