"""What attacks found on one run of images or of texts: a row for each attack and batch size,
verdict and facts.
"""

import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.metrics import Interval, mean_interval
from fedlsg.attacks.observation import Guess, Observation
from fedlsg.attacks.recognition import LEAKS, MAX_UNEXPLAINED, Recognition, Verdict
from fedlsg.simulations.attacks.observations import Record, privacy_facts, sigma_of
from fedlsg.simulations.attacks.target import Reading, Results, Target
from fedlsg.simulations.report.pages.page import Badge, Gallery, RowKind, Table, TokenLines
from fedlsg.simulations.report.pages.table import Column, make_table

NAIVE = "-naive"
CLOSED = frozenset({"first-layer", "relu-batch", "span"})
"""Attacks that solve equations; the others search."""
FORMS = (
    "closed: solves equations. adaptive: searches, and sends its candidates through the client's "
    "own projection, mask and clip. naive: searches without them. recognised: each nearer to its "
    "original than to any public example, of 100 or more for each original; recovered: of these, "
    "those that are all but the original. converged: searches "
    f"that leave at most {100 * MAX_UNEXPLAINED:g} % of an update unexplained."
)


def split_name(attack: str) -> tuple[str, str]:
    """An attack's name, and its form: closed, adaptive or naive."""
    if attack.endswith(NAIVE):
        return attack.removesuffix(NAIVE), "naive"
    return attack, "closed" if attack in CLOSED else "adaptive"


def shown_name(attack: str) -> str:
    """An attack's name in a sentence."""
    name, form = split_name(attack)
    return f"naive {name}" if form == "naive" else name


NO_ATTACK = "no attack applies"
VERDICTS: Mapping[Verdict, tuple[str, Badge]] = MappingProxyType(
    {
        "recovered": ("this is the person's {}", "bad"),
        "recognisable": ("recognisable as the person's {}", "bad"),
        "not told apart": ("nothing recognisable", "good"),
        "undecided": ("undecided", ""),
    }
)
"""The verdict on one example in plain words, the example for ``{}``, and its colour."""
LEAK = "these updates leak"
"""How verdicts begin that say that an attack succeeded."""
FEWEST_OF_MEAN = 5
"""Gains of fewer examples (of texts, updates) have a mean, and no interval."""
Grade = Literal["leak", "better", "undecided", "no attack", "nothing"]
BADGES: Mapping[Grade, tuple[str, Badge]] = MappingProxyType(
    {
        "leak": ("the attack succeeded", "bad"),
        "better": ("nothing recognised, better than a blind guess", "limited"),
        "undecided": ("undecided", "limited"),
        "no attack": (NO_ATTACK, "limited"),
        "nothing": ("no attack succeeded", "good"),
    }
)
"""Verdicts on a run in a few words, the worst one first."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The verdict on a run: its grade, and all of it in words."""

    grade: Grade
    words: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Score:
    """One attack on one update; images and texts add what they measure.

    recognitions: the verdict on each example.
    """

    attack: str
    seconds: float
    objective: float | None
    note: str
    unexplained: float | None = None
    recognitions: tuple[Recognition, ...] = ()

    def numbers(self, *without: str) -> dict[str, Any]:
        """What attack.json says of it, ``without`` these fields."""
        numbers = {key: value for key, value in vars(self).items() if key not in without}
        return {**numbers, "recognitions": [vars(recognition) for recognition in self.recognitions]}

    @property
    def stuck(self) -> bool:
        """Whether it is a search that does not explain the update."""
        return self.unexplained is not None and self.unexplained > MAX_UNEXPLAINED


def of_guess(attack: str, guess: Guess, seconds: float) -> dict[str, Any]:
    """What every ``Score`` has."""
    return {
        "attack": attack,
        "seconds": seconds,
        "objective": guess.objective,
        "note": guess.note,
        "unexplained": guess.unexplained,
    }


@dataclass(frozen=True, kw_only=True)
class Outcome(ABC):
    """One attack over all updates of one run and batch size; images and texts add their figures and
    words.

    blind: mean of the blind guess.
    mean_gain: of the attack over it.
    gain: with its interval, None for fewer than ``FEWEST_OF_MEAN``.
    examples: how many were attacked.
    recognised: how many are the nearest to their originals.
    recovered: of these, how many are all but them.
    unexplained: by update, the share that its guess leaves open; empty for attacks that do not
        search.

    columns: of tables, between the attack and its seconds.
    ``note``: what they mean.
    granted: assumptions in addition to those of the threat model.
    limits: what a reader should know about the numbers.
    unit, scale: of a gain in figures.
    things, thing: what leaks, and one of them.
    nothing: said where none is recovered.
    """

    columns: ClassVar[tuple[Column, ...]]
    note: ClassVar[str]
    granted: ClassVar[Mapping[str, str]]
    limits: ClassVar[str]
    unit: ClassVar[str]
    scale: ClassVar[float]
    things: ClassVar[str]
    thing: ClassVar[str]
    nothing: ClassVar[str]
    attack: str
    batch: int
    blind: float
    mean_gain: float
    gain: Interval | None
    seconds: float
    examples: int
    recognised: int
    recovered: int
    unexplained: tuple[float, ...] = ()

    @property
    def strength(self) -> tuple[float, float, float]:
        """What attacks and runs are ordered by: the shares that are recognised, and recovered, then
        the gain.
        """
        return self.recognised / self.examples, self.recovered / self.examples, self.mean_gain

    @property
    @abstractmethod
    def result(self) -> str:
        """What the attack gets, in words."""

    @property
    @abstractmethod
    def reach(self) -> str:
        """The interval of its gain, in words."""

    @classmethod
    @abstractmethod
    def of(cls, results: Sequence[Any], batch: int) -> "Outcome":
        """From the scores of one attack."""


def common_figures(
    results: Sequence[Any], batch: int, *, score: float, blind: float, gains: Float[Tensor, " n"]
) -> dict[str, Any]:
    """What every ``Outcome`` has, of one attack's results."""
    verdicts = [each.verdict for result in results for each in result.recognitions]
    return {
        "attack": results[0].attack,
        "batch": batch,
        "blind": blind,
        "mean_gain": score - blind,
        "gain": mean_interval(gains) if len(gains) >= FEWEST_OF_MEAN else None,
        "seconds": statistics.fmean(result.seconds for result in results),
        "examples": batch * len(results),
        "recognised": sum(map(verdicts.count, LEAKS)),
        "recovered": verdicts.count("recovered"),
        "unexplained": tuple(
            result.unexplained for result in results if result.unexplained is not None
        ),
    }


@dataclass(frozen=True, kw_only=True)
class Best:
    """What the strongest attack gains over the blind guess in a run, in ``unit``, and the run's
    settings.

    sparsity: None for a method without one.
    sigma: noise over sensitivity of what was seen, 0 without noise.
    low and high: ends of the 95 % interval over what was attacked; None for few of it.
    strength: as ``Outcome.strength``.
    """

    method: str
    sparsity: float | None
    sigma: float
    attack: str
    unit: str
    gain: float
    low: float | None
    high: float | None
    strength: tuple[float, float, float]


def best_of(rows: Sequence[Outcome], record: Record, observation: Observation) -> Best | None:
    """The strongest attack: the first row, which the verdict names, too."""
    if not rows:
        return None
    row, settings = rows[0], record.base.settings
    return Best(
        strength=row.strength,
        method=settings.method,
        sparsity=settings.parameters.get("sparsity"),
        sigma=sigma_of(observation),
        attack=row.attack,
        unit=row.unit,
        gain=row.scale * row.mean_gain,
        low=None if row.gain is None else row.scale * row.gain.low,
        high=None if row.gain is None else row.scale * row.gain.high,
    )


@dataclass(frozen=True, kw_only=True)
class Update:
    """The verdict on each example of one update, over all attacks.

    unexplained: the least share that a search leaves open; None where none searched.
    close: how many are undecided because a mixture of public ones is as near
        (``Recognition.close``).
    among: how many examples an original is the nearest of, where it is; the fewest.
    """

    verdicts: tuple[Verdict, ...]
    unexplained: float | None
    close: int = 0
    among: int = 0

    @classmethod
    def of(cls, scores: Sequence[Score], examples: int) -> "Update":
        """From the scores of all attacks.

        One attack that recognises an example suffices. That none does is said only where a search
        explains the update, or where nothing searched, and no attack comes close.
        """
        searches = [one for one in scores if one.unexplained is not None]
        left = [one.unexplained for one in searches if one.unexplained is not None]
        verdicts: list[Verdict] = []
        close = 0
        for at in range(examples):
            each = [one.recognitions[at] for one in scores]
            reached = {one.verdict for one in each}
            near = any(one.close for one in each)
            decided = any(
                one.recognitions[at].verdict == "not told apart" for one in searches or scores
            )
            verdict: Verdict = "not told apart" if decided and not near else "undecided"
            verdict = next((leak for leak in LEAKS if leak in reached), verdict)
            verdicts.append(verdict)
            close += near and verdict == "undecided"
        pools = [
            one.among for score in scores for one in score.recognitions if one.verdict in LEAKS
        ]
        return cls(
            verdicts=tuple(verdicts),
            unexplained=min(left, default=None),
            close=close,
            among=min(pools, default=0),
        )


def judge(rows: Sequence[Outcome], updates: Sequence[Update]) -> Judged:
    """Whether single examples were recognised; the first row is the strongest attack's.

    How much is gained on average is said in addition.
    """
    if not rows:
        words = f"{NO_ATTACK} to these updates, for the given reasons: that is no proof of privacy"
        return Judged(grade="no attack", words=words)
    best, verdicts = rows[0], [verdict for update in updates for verdict in update.verdicts]
    among_all = f"of {len(verdicts)} {best.things if len(verdicts) > 1 else best.thing}"
    strongest = (
        f"the strongest attack ({shown_name(best.attack)}, batch of {best.batch}) "
        f"{best.result}{best.reach}"
    )
    leaks = [
        f"{count} {among_all} {verdict}" for verdict in LEAKS if (count := verdicts.count(verdict))
    ]
    if leaks:
        among = min(update.among for update in updates if update.among)
        nearest = f"nearest to its own original of {among:,}"
        words = f"{LEAK} {best.things}: {' and '.join(leaks)}, {nearest}; {strongest}"
        return Judged(grade="leak", words=words)
    if "undecided" in verdicts:
        words = f"undecided, {undecided_words(updates, best.thing)}: {strongest}"
        return Judged(grade="undecided", words=words)
    if best.gain is not None and best.gain.low > 0:
        none = f"none {among_all} recognised"
        words = f"{none}, slightly better than a blind guess on average: {strongest}"
        return Judged(grade="better", words=words)
    words = f"{best.nothing}: {strongest}. Other attacks may do better"
    return Judged(grade="nothing", words=words)


def undecided_words(updates: Sequence[Update], thing: str) -> str:
    """On which updates nothing can be said, why, and what to do. ``thing``: an example."""
    left = [update.unexplained or 0.0 for update in updates if "undecided" in update.verdicts]
    if close := sum(update.close for update in updates):
        return (
            f"{close} of {sum(len(update.verdicts) for update in updates)} nearer to the original "
            f"than to any public {thing}, but no nearer than to a mixture of two: give more "
            "--seconds, or other --attacks"
        )
    if min(left) <= MAX_UNEXPLAINED:
        return "too few public examples to recognise one by: use a test split of 2 or more a class"
    where = "" if len(updates) == 1 else f" on {len(left)} of {len(updates)} updates"
    least, most = (f"{100 * end:.0f}" for end in (min(left), max(left)))
    reach = least if least == most else f"{least} to {most}"
    return (
        f"no search converged{where} (the best guess leaves {reach} % of such an update "
        "unexplained): no evidence of privacy; give more --seconds, or other --attacks"
    )


OF_ATTACK = (
    Column("attack", lambda row: split_name(row.attack)[0]),
    Column("form", lambda row: split_name(row.attack)[1], left=True),
    Column("batch", lambda row: row.batch),
)
"""The first columns of a table of attacks, a row for each attack and batch size."""
OF_SEARCH = (
    Column("converged", lambda row: converged_words(row.unexplained), optional=2),
    Column("seconds", lambda row: row.seconds, ".1f", optional=1),
)
"""The last columns."""


def converged_words(unexplained: Sequence[float]) -> str:
    """How many searches explain their update; nothing of attacks that do not search."""
    if not unexplained:
        return "--"
    return f"{sum(left <= MAX_UNEXPLAINED for left in unexplained)} of {len(unexplained)}"


def style_of(row: Any) -> RowKind:
    """The naive forms are dim."""
    return "dim" if split_name(row.attack)[1] == "naive" else ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """What attacks found on one run: for the page, the terminal and attack.json (``numbers``).

    facts: what was attacked, by name.
    shown: recovered images or texts.
    refused: why an attack did not apply, by its name.
    granted: assumptions in addition to those of the threat model.
    limits: what a reader should know about the numbers.
    best: of the strongest attack; None if there is none.
    private: whether the attacked updates have noise, also that of a reproducible record.
    """

    label: str
    private: bool
    verdict: str
    grade: Grade
    facts: Mapping[str, str]
    table: Table
    shown: Gallery | TokenLines
    numbers: Mapping[str, Any]
    refused: Mapping[str, str]
    granted: Mapping[str, str]
    limits: str
    best: Best | None


def summaries(found: Results) -> list[Any]:
    """One row for each attack and batch size, the strongest first."""
    groups: dict[tuple[str, int], list[Any]] = {}
    for target, results in zip(found.targets, found.results, strict=True):
        for result in results:
            groups.setdefault((result.attack, len(target.truth.rows)), []).append(result)
    rows = [found.kind.outcome.of(scores, batch) for (_, batch), scores in groups.items()]
    return sorted(rows, key=lambda row: row.strength, reverse=True)


def read_each(found: Results) -> list[list[Reading]]:
    """By target and example, the verdict over all attacks, and the strongest attack with it."""
    order = list(dict.fromkeys(row.attack for row in summaries(found)))
    read = []
    for target, scores in zip(found.targets, found.results, strict=True):
        ranked = sorted(scores, key=lambda one: order.index(one.attack))
        each = []
        for at, verdict in enumerate(Update.of(scores, len(target.truth.rows)).verdicts):
            alike = [one for one in ranked if one.recognitions[at].verdict == verdict]
            each.append(Reading(score=next(iter([*alike, *ranked]), None), verdict=verdict))
        read.append(each)
    return read


def update_numbers(target: Target) -> dict[str, Any]:
    """Which update was attacked, for attack.json."""
    return {
        "round": target.seen.round,
        "clients": list(target.seen.clients),
        "rows": target.truth.rows.tolist(),
        "labels": target.truth.labels.tolist(),
    }


def findings_of(found: Results) -> Findings:
    """What attacks found on one run."""
    kind, seen, rows = found.kind, found.targets[0].seen, summaries(found)
    words = kind.outcome
    updates = [
        Update.of(scores, len(target.truth.rows))
        for target, scores in zip(found.targets, found.results, strict=True)
    ]
    facts, more = kind.describe(found)
    judged = judge(rows, updates)
    numbers = {
        "run": found.record.run.path.name,
        "membership_tpr_at_1_percent_fpr": found.membership,
        **more,
        "summary": [asdict(row) for row in rows],
        "updates": [
            {**update_numbers(rest[0]), **asdict(each), **kind.numbers(*rest)}
            for each, *rest in zip(updates, found.targets, found.blind, found.results, strict=True)
        ],
    }
    return Findings(
        label=found.record.base.settings.method,
        private=seen.mechanism.private,
        verdict=judged.words,
        grade=judged.grade,
        facts={**privacy_facts(found.record, seen, found.membership), **facts},
        table=make_table(
            (*OF_ATTACK, *words.columns, *OF_SEARCH), rows, style=style_of, note=words.note
        ),
        shown=kind.shown(found, list(dict.fromkeys(row.attack for row in rows))),
        numbers=numbers,
        refused=found.refused,
        granted=words.granted,
        limits=words.limits,
        best=best_of(rows, found.record, seen),
    )
