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

from fedlsg import strategies, user_code
from fedlsg.config.directions import higher_is_better
from fedlsg.config.units import unit_in
from fedlsg.simulations.compare.grid.cells import LABEL, OWN_RECIPE, UNTOUCHED, grouped
from fedlsg.simulations.compare.grid.choosing import Choosing
from fedlsg.simulations.compare.grid.same_contents import ROWS
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
ROUNDING = 1e-9
"""Differences are equal, but for rounding, if their spread is at most this share of their mean."""
TASK = ("workload", "dataset", "subset", "holdout", "public_rows")
"""What lines need in common to be compared: the evaluated rows of one workload, of one version."""
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
TWO_SIDED_95 = 0.975
"""The share of a distribution below the upper end of its middle 95 %."""
NUMBERS = [
    *MEANS,
    *("epsilon_max", "epsilon_outside", "uplink_bytes_dense", "downlink_bytes_dense"),
    *("uplink_bytes_wire", "messages"),
]
"""Columns of runs that are numbers: lines have means or sums of them."""
SEED = ["group", "seed"]
"""What runs have in common that are a repetition of one seed."""
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
    """Finished runs with their scores: losses if a run of the line has no accuracy.

    Several runs of one seed are one row, with their means and their largest epsilon: a line counts
    each seed once.
    """
    lossy = done.accuracy.isna().groupby(done.group).transform("any")
    done = done.assign(by_loss=lossy, score=done.accuracy.mask(lossy, done.loss).astype(float))
    if done.duplicated(SEED).any():
        seeds = done.groupby(SEED)
        means = seeds[[*NUMBERS, "score"]].transform(lambda values: values.mean(skipna=False))
        largest = seeds.epsilon_max.transform("max")
        done = done.assign(**means).assign(
            epsilon_max=largest, private=seeds.private.transform("all")
        )
        done = done.drop_duplicates(SEED)
    done["scores"] = list(zip(done.seed, done.score, strict=True))
    return done


def _with_means(table: pd.DataFrame, runs: pd.DataFrame, done: pd.DataFrame) -> pd.DataFrame:
    """Lines with the means and sums of their finished runs: NaN without one, or where one lacks the
    number.
    """
    groups = done.groupby("group")
    complete = groups[NUMBERS].count().eq(groups.size(), axis=0)
    means = groups[NUMBERS].mean().where(complete).rename(columns=MEANS)
    sums = groups[NUMBERS].sum()
    table = table.join(means[[*MEANS.values()]])
    return table.assign(
        name=list(map(line_name, table.label, table.settings, table.level)),
        by_loss=table.by_loss.eq(True),
        private=groups.private.all(),
        runs=runs.groupby("group").run.agg(list),
        planned=runs.groupby("group").seed.nunique(),
        n=groups.size().reindex(table.index, fill_value=0),
        scores=groups.scores.agg(list),
        mean=groups.score.mean(),
        sd=groups.score.std(),
        accuracy_sd=groups.accuracy.std().where(complete.accuracy),
        epsilon_max=groups.epsilon_max.max(),
        epsilon_outside=groups.epsilon_outside.max().where(complete.epsilon_outside),
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

    behind: the mean difference; below 0 if the line is ahead. If the lines have no seed in common,
        the difference of their means.
    error: the standard error of ``behind``: over seeds, or over test rows if all seeds differ by
        the same. None for fewer than two seeds, and if the number of test rows is not known.
    seeds: the number of seeds that both lines have.
    """

    behind: float
    error: float | None
    seeds: int

    @property
    def may_be_chance(self) -> bool:
        """Whether the difference may be 0 at 95 % confidence, by Student's t; True without an
        error.
        """
        return self.error is None or abs(self.behind) <= quantile(self.seeds) * self.error


@cache
def quantile(seeds: int) -> float:
    """Student's t at 95 %: a larger difference, in standard errors, is not chance.

    It is 12.7 for two seeds, 4.3 for three and 2 for many.
    """
    from scipy.stats import t  # half a second that a start need not wait for

    return float(t.ppf(TWO_SIDED_95, seeds - 1))


def paired(line: Line, best: Line) -> Paired:
    """How far a finished line is behind ``best``, paired by seed."""
    # scores are (seed, score) pairs: series subtract seed by seed, NaN for a seed of one line alone
    lags = (pd.Series(dict(best.scores)) - pd.Series(dict(line.scores))).dropna()
    sign = 1 if best.more_is_better else -1
    behind = lags.mean() if len(lags) else best.mean - line.mean
    error = _error_of(lags, None if best.by_loss else best.run.chance)
    return Paired(sign * float(behind), error, len(lags))


def _error_of(lags: pd.Series, chance: Chance | None) -> float | None:
    """Standard error of the mean of paired differences, one for each seed.

    Few seeds may differ by the same number of test rows by chance, so no spread proves nothing.
    Then it is the error of the N test rows. Two models whose accuracies differ by d disagree on at
    least a share d of the rows. So the difference of one seed has at least the variance
    d (1 - d) / N.
    """
    if len(lags) < 2:
        return None
    spread = float(lags.sem())
    d = min(abs(float(lags.mean())), 1.0)
    if spread > ROUNDING * d or not d:
        return spread
    if chance is None:
        return None
    return math.sqrt(d * (1 - d) / (chance.test_examples * len(lags)))


def _in_all(table: pd.DataFrame, choosing: Choosing | None) -> dict[str, pd.Series]:
    """Columns of what choosing the settings of a line cost, alone and together with all its runs.

    The sums of epsilons and of deltas are by basic composition. They are None without a search, and
    for a line that claims no epsilon.
    """
    untouched = choosing.untouched if choosing else {}
    labels = list(table.label)
    epsilons, deltas, chosen = list[Any](), list[Any](), list[Any]()
    for line in table.itertuples():
        own = choosing if line.label in untouched else None
        epsilon, delta = (own.epsilon, own.delta) if own else (0.0, 0.0)
        chosen.append(own and epsilon)
        spent = [each for each in map(_spent, line.runs) if each is not None]
        # without a finished run nothing contradicts the claim of its settings
        claims_epsilon = line.private is not False and len(spent) == len(line.runs)
        if choosing and claims_epsilon:
            epsilons.append(math.fsum([epsilon, *spent]))
            deltas.append(len(spent) * (line.delta or 0.0) + delta)
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
    return {name: pd.Series(values, table.index, dtype=object) for name, values in columns.items()}


def _spent(run: Result) -> float | None:
    """The epsilon of a run: what it spent, or what it will have spent where it is not finished."""
    if run.done:
        return run.epsilon_max
    epsilons = [each for each in (run.epsilon_max, run.epsilon_target) if each is not None]
    return max(epsilons, default=None)


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
    return {name: pd.Series(values, table.index, dtype=object) for name, values in columns.items()}


def relabelled(table: pd.DataFrame, labels: Labels) -> pd.DataFrame:
    """The lines under the names that a user gives them, by their labels or their whole names.

    A given name replaces the settings in a line's name, too, and so does a label that is not the
    name of the method. If several lines have one label, the settings in which they differ follow.
    """
    variants = table.settings.groupby(table.label).agg(list)
    names, short, settings = [], [], []
    for line in table.itertuples():
        differing = {
            name: value
            for name, value in line.settings.items()
            if any(other.get(name) != value for other in variants[line.label])
        }
        label = labels.get(line.label, line.label)
        is_given = line.label in labels or _is_own_label(line)
        level = "" if line.label in labels else line.level
        usual = line_name(label, differing, level) if is_given else line.name
        names.append(labels.get(line.name, usual))
        short.append(labels.get(line.name, label))
        settings.append(differing if is_given else line.settings)
    columns = {"name": names, "label": short, "settings": settings}
    return table.assign(
        **{name: pd.Series(values, table.index, dtype=object) for name, values in columns.items()}
    )


def _is_own_label(line: Line) -> bool:
    """Whether a user called the method so in a comparison, instead of by its name."""
    usual = user_code.short(str(line.method))
    return bool(LABEL.fullmatch(line.label)) and line.label not in (usual, f"{usual}{UNTOUCHED}")


def added_labels(kept: Labels, given: Labels) -> dict[str, str]:
    """The names that a folder has, and those that are given now, which replace them.

    Raises ValueError for a given name that another method of the folder has.
    """
    for key, name in given.items():
        others = [label for label, old in kept.items() if old == name and label not in given]
        if others:
            raise ValueError(f"label {key}={name}: {others[0]} is called that in this folder")
    return {**kept, **given}


def full_labels(labels: Labels, known: Iterable[str]) -> dict[str, str]:
    """The given names, by labels among the ``known`` ones.

    FILE stands for FILE-recipe, the label of a recipe of the user's own.
    """
    known = {*known}
    full = dict[str, str]()
    for key, name in labels.items():
        of_recipe = f"{key}{OWN_RECIPE}"
        full[of_recipe if key not in known and of_recipe in known else key] = name
    return full


def check_labels(labels: Labels, known: Iterable[str]) -> None:
    """Raise ValueError for a label that is not ``known``, for a name that is another label, and for
    a name that several labels have.

    A key of ``labels`` is a label, or the whole name of a line: a label and settings in brackets.
    """
    known = list(dict.fromkeys(known))
    names = [*labels.values()]
    for key, name in labels.items():
        if names.count(name) > 1:
            same = ", ".join(other for other in labels if labels[other] == name)
            raise ValueError(
                f"label {key}={name}: {same} would all be called {name}: give each its own name"
            )
        if not any(key == label or key.startswith(f"{label} (") for label in known):
            raise ValueError(f"label {key}: nothing is called that; known: {', '.join(known)}")
        if name != key and name in known:
            raise ValueError(f"label {key}={name}: another method is called {name}")


def more_is_better(by_loss: bool) -> bool:
    """Whether the best score is the highest; ``by_loss``: scores are losses, not accuracies."""
    return bool(higher_is_better("loss" if by_loss else "accuracy"))


def _row(run: Result) -> dict[str, Any]:
    """A run as a row: its facts, its numbers, and what decides which line it belongs to."""
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
        "task": (*map(settings.get, TASK), *map(run.versions.get, ROWS)),
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
    columns: dict[str, list[Any]] = {"chance": [], "standard_error": [], "beats_chance": []}
    for run, pairs in zip(table.run, table.scores, strict=True):
        chance, scores = run.chance, [score for _, score in pairs or ()]
        columns["chance"].append(chance and chance.level)
        columns["standard_error"].append(chance and standard_error(scores, chance))
        columns["beats_chance"].append(chance and beats_chance(scores, chance))
    return columns


def in_legend_order(table: pd.DataFrame) -> pd.DataFrame:
    """Lines in the order of every legend: by method, then by name, the smallest epsilon first."""
    legend = list(zip(map(canonical, table.method), table.name, strict=True))
    return table.assign(legend=legend).sort_values("legend", kind="stable")
