"""Results of the attacks on one run: a row for each attack and batch size, a verdict, facts."""

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
from fedlsg.simulations.attacks.observations import Record
from fedlsg.simulations.attacks.privacy_facts import privacy_facts, sigma_of
from fedlsg.simulations.attacks.target import Reading, Results, Target
from fedlsg.simulations.report.pages.page import Badge, Gallery, RowKind, Table, TokenLines
from fedlsg.simulations.report.pages.table import Column, make_table

NAIVE = "-naive"
"""How names of naive attacks end."""
CLOSED = frozenset({"first-layer", "relu-batch", "span"})
"""Attacks that solve equations; the others search."""
FORMS = (
    "closed: solves equations. adaptive: searches, and sends its candidates through the client's "
    "own projection, mask and clip. naive: searches without them. recognised: each nearer to its "
    "original than to any public example, of 100 or more for each original; recovered: of these, "
    "those that are all but the original. converged: searches "
    f"that leave at most {100 * MAX_UNEXPLAINED:g} % of an update unexplained."
)
"""The note on the words that tables of attacks use."""


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
"""By verdict on one example: plain words, in which ``{}`` is the example, and the colour."""
LEAK = "these updates leak"
"""Verdicts on a run in which an attack succeeded begin with these words."""
FEWEST_OF_MEAN = 5
"""An interval of the mean gain needs so many gains: one an image, or one an update of texts."""
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
"""Verdicts on a run in a few words and their colour, the worst one first."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The verdict on a run.

    grade: in one word.
    words: in one sentence, with the numbers that it rests on.
    """

    grade: Grade
    words: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Score:
    """One attack on one update; images and texts add what they measure.

    attack: its name.
    seconds: how long it took.
    objective: the least value that a search reached; None for attacks that do not search.
    note: what the attack says of its guess.
    unexplained: share of the update that the guess leaves open; None for attacks that do not
        search.
    recognitions: the verdict on each example, in the order of the truth.
    """

    attack: str
    seconds: float
    objective: float | None
    note: str
    unexplained: float | None = None
    recognitions: tuple[Recognition, ...] = ()

    def numbers(self, *without: str) -> dict[str, Any]:
        """The fields for attack.json, except those named in ``without``."""
        numbers = {key: value for key, value in vars(self).items() if key not in without}
        return {**numbers, "recognitions": [vars(recognition) for recognition in self.recognitions]}

    @property
    def stuck(self) -> bool:
        """Whether it is a search that does not explain the update."""
        return self.unexplained is not None and self.unexplained > MAX_UNEXPLAINED


def guess_fields(attack: str, guess: Guess, seconds: float) -> dict[str, Any]:
    """The fields of a ``Score`` that images and texts share, but for ``recognitions``."""
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

    columns: of tables, between the name of the attack and its seconds.
    note: what these columns mean.
    granted: assumptions in addition to those of the threat model.
    limits: what a reader should know about the numbers.
    unit: of a gain in figures.
    scale: factor from a gain here to a gain in that unit.
    things: the word for the examples.
    thing: the word for one example.
    nothing: the verdict if no example is recognised.

    attack: its name.
    batch: examples in each update.
    blind: mean score of the blind guess.
    mean_gain: mean score of the attack less ``blind``.
    gain: interval of the mean gain; None for fewer than ``FEWEST_OF_MEAN`` gains.
    seconds: mean for one update.
    examples: how many were attacked.
    recognised: how many guesses are nearer to their original than to any public example.
    recovered: how many of these are all but the original.
    unexplained: by update, the share that its guess leaves open; empty for attacks that do not
        search.
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
        """The order of attacks and runs: share recognised, share recovered, mean gain."""
        return self.recognised / self.examples, self.recovered / self.examples, self.mean_gain

    @property
    @abstractmethod
    def result(self) -> str:
        """The mean score of the attack in words."""

    @property
    @abstractmethod
    def reach(self) -> str:
        """The interval of its gain in words; empty without one."""

    @classmethod
    @abstractmethod
    def of(cls, results: Sequence[Any], batch: int) -> "Outcome":
        """Summary of the scores of one attack on updates of ``batch`` examples each."""


def common_figures(
    results: Sequence[Any], batch: int, *, score: float, blind: float, gains: Float[Tensor, " n"]
) -> dict[str, Any]:
    """The fields of an ``Outcome`` that images and texts share.

    results: scores of one attack, one an update.
    batch: examples in each update.
    score: mean score of the attack.
    blind: mean score of the blind guess.
    gains: one an image, or one an update of texts.
    """
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
    """The gain of the strongest attack on a run, and the settings that curves show it over.

    method: of the run.
    sparsity: of the run; None for a method without one.
    sigma: noise over sensitivity of the attacked update, 0 without noise.
    attack: its name.
    unit: of ``gain``, ``low`` and ``high``.
    gain: mean over the blind guess.
    low: lower end of the 95 % interval of the mean; None for few gains.
    high: upper end of that interval; None for few gains.
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
    """The strongest attack, which is the first row; None if no attack applied."""
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

    verdicts: one an example.
    unexplained: the least share that a search leaves open; None if no attack searched.
    close: how many examples are undecided because a mixture of public ones is as near
        (``Recognition.close``).
    among: size of the smallest pool in which an original was the nearest; 0 if none was.
    """

    verdicts: tuple[Verdict, ...]
    unexplained: float | None
    close: int = 0
    among: int = 0

    @classmethod
    def of(cls, scores: Sequence[Score], examples: int) -> "Update":
        """From the scores of all attacks.

        The verdict on an example is that of the attack that recognises most. "Not told apart" needs
        a search that says so, or any attack if none searched; and no attack may come close.
        """
        searches = [score for score in scores if score.unexplained is not None]
        verdicts: list[Verdict] = []
        close = 0
        for index in range(examples):
            recognitions = [score.recognitions[index] for score in scores]
            reached = {recognition.verdict for recognition in recognitions}
            is_close = any(recognition.close for recognition in recognitions)
            decided = any(
                score.recognitions[index].verdict == "not told apart"
                for score in searches or scores
            )
            verdict: Verdict = "not told apart" if decided and not is_close else "undecided"
            verdict = next((leak for leak in LEAKS if leak in reached), verdict)
            verdicts.append(verdict)
            close += is_close and verdict == "undecided"
        recognitions = [recognition for score in scores for recognition in score.recognitions]
        return cls(
            verdicts=tuple(verdicts),
            unexplained=min(
                (score.unexplained for score in scores if score.unexplained is not None),
                default=None,
            ),
            close=close,
            among=min((each.among for each in recognitions if each.verdict in LEAKS), default=0),
        )


def judge(rows: Sequence[Outcome], updates: Sequence[Update]) -> Judged:
    """The verdict on a run: whether single examples were recognised, and the mean gain.

    rows: one for each attack and batch size, the strongest first.
    updates: the verdicts on their examples.
    """
    if not rows:
        words = f"{NO_ATTACK} to these updates, for the given reasons: that is no proof of privacy"
        return Judged(grade="no attack", words=words)
    best = rows[0]
    verdicts = [verdict for update in updates for verdict in update.verdicts]
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
        words = (
            f"none {among_all} recognised, slightly better than a blind guess on average: "
            f"{strongest}"
        )
        return Judged(grade="better", words=words)
    words = f"{best.nothing}: {strongest}. Other attacks may do better"
    return Judged(grade="nothing", words=words)


def undecided_words(updates: Sequence[Update], thing: str) -> str:
    """Why a verdict is undecided, on how many updates, and what to do.

    updates: all; at least one has an undecided example.
    thing: the word for an example.
    """
    unexplained = [
        update.unexplained or 0.0 for update in updates if "undecided" in update.verdicts
    ]
    if close := sum(update.close for update in updates):
        return (
            f"{close} of {sum(len(update.verdicts) for update in updates)} nearer to the original "
            f"than to any public {thing}, but no nearer than to a mixture of two: give more "
            "--seconds, or other --attacks"
        )
    if min(unexplained) <= MAX_UNEXPLAINED:
        return "too few public examples to recognise one by: use a test split of 2 or more a class"
    where = "" if len(updates) == 1 else f" on {len(unexplained)} of {len(updates)} updates"
    least = f"{100 * min(unexplained):.0f}"
    most = f"{100 * max(unexplained):.0f}"
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
"""The last columns of a table of attacks."""


def converged_words(unexplained: Sequence[float]) -> str:
    """How many searches explain their update; ``--`` for attacks that do not search."""
    if not unexplained:
        return "--"
    return f"{sum(share <= MAX_UNEXPLAINED for share in unexplained)} of {len(unexplained)}"


def style_of(row: Any) -> RowKind:
    """The style of a row: dim for naive attacks."""
    return "dim" if split_name(row.attack)[1] == "naive" else ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """Results of the attacks on one run, for the page, the terminal and attack.json.

    label: the run's name on a page.
    private: whether the attacked updates have noise, also that of a reproducible record.
    verdict: in one sentence.
    grade: the verdict in one word.
    facts: what was attacked, by name.
    table: a row for each attack and batch size.
    shown: recovered images or texts.
    numbers: for attack.json.
    refused: why an attack did not apply, by its name.
    granted: assumptions in addition to those of the threat model.
    limits: what a reader should know about the numbers.
    best: of the strongest attack; None if no attack applied.
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
        for score in results:
            groups.setdefault((score.attack, len(target.truth.rows)), []).append(score)
    rows = [found.kind.outcome.of(scores, batch) for (_, batch), scores in groups.items()]
    return sorted(rows, key=lambda row: row.strength, reverse=True)


def read_each(found: Results) -> list[list[Reading]]:
    """By target and example, the verdict over all attacks, and the strongest attack with it.

    The strongest attack of all is shown if none has that verdict.
    """
    order = list(dict.fromkeys(row.attack for row in summaries(found)))
    by_target = []
    for target, scores in zip(found.targets, found.results, strict=True):
        ranked = sorted(scores, key=lambda score: order.index(score.attack))
        readings = []
        for index, verdict in enumerate(Update.of(scores, len(target.truth.rows)).verdicts):
            alike = [score for score in ranked if score.recognitions[index].verdict == verdict]
            readings.append(Reading(score=next(iter([*alike, *ranked]), None), verdict=verdict))
        by_target.append(readings)
    return by_target


def update_numbers(target: Target) -> dict[str, Any]:
    """The attacked update for attack.json: its round, clients, rows and labels."""
    return {
        "round": target.seen.round,
        "clients": list(target.seen.clients),
        "rows": target.truth.rows.tolist(),
        "labels": target.truth.labels.tolist(),
    }


def findings_of(found: Results) -> Findings:
    """The findings of a run from the results of its attacks."""
    kind, seen, rows = found.kind, found.targets[0].seen, summaries(found)
    outcome = kind.outcome
    updates = [
        Update.of(scores, len(target.truth.rows))
        for target, scores in zip(found.targets, found.results, strict=True)
    ]
    facts, kind_numbers = kind.describe(found)
    judged = judge(rows, updates)
    numbers = {
        "run": found.record.run.path.name,
        "membership_tpr_at_1_percent_fpr": found.membership,
        **kind_numbers,
        "summary": [asdict(row) for row in rows],
        "updates": [
            {**update_numbers(target), **asdict(update), **kind.numbers(target, blind, scores)}
            for update, target, blind, scores in zip(
                updates, found.targets, found.blind, found.results, strict=True
            )
        ],
    }
    return Findings(
        label=found.record.base.settings.method,
        private=seen.mechanism.private,
        verdict=judged.words,
        grade=judged.grade,
        facts={**privacy_facts(found.record, seen, found.membership), **facts},
        table=make_table(
            (*OF_ATTACK, *outcome.columns, *OF_SEARCH), rows, style=style_of, note=outcome.note
        ),
        shown=kind.shown(found, list(dict.fromkeys(row.attack for row in rows))),
        numbers=numbers,
        refused=found.refused,
        granted=outcome.granted,
        limits=outcome.limits,
        best=best_of(rows, found.record, seen),
    )
