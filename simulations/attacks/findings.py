"""What attacks found on one run of images or of texts: a row for each attack and batch size,
verdict and facts.
"""

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.metrics import Interval, mean_interval
from fedlsg.attacks.observation import Guess, Observation
from fedlsg.simulations.attacks.observations import Record, privacy_facts, sigma_of
from fedlsg.simulations.attacks.target import Results, Target
from fedlsg.simulations.report.page import Gallery, RowKind, Table, TokenLines
from fedlsg.simulations.report.table import Column, make_table

NAIVE = "-naive"
CLOSED = frozenset({"first-layer", "relu-batch", "span"})
"""Attacks that solve equations; the others search."""
CONVERGED = 0.01
"""A search that leaves a larger share of an update unexplained has found no batch that may have
made it.
"""
FORMS = (
    "closed: solves equations. adaptive: searches, and sends its candidates through the client's "
    "own projection, mask and clip. naive: searches without them."
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


LEAK, NOTHING = "these updates leak", "Other attacks may do better"
"""How verdicts begin that say that an attack succeeded, and how those end that say that none
did.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Score:
    """One attack on one update; images and texts add what they measure."""

    attack: str
    seconds: float
    objective: float | None
    note: str
    unexplained: float | None = None


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

    blind: mean of the blind guess. mean_gain: of the attack over it; gain: with its interval, None
    for fewer than two.
    unexplained: the largest share of an update that its guess leaves open; None for attacks that do
    not search.

    columns: of tables, between the attack and its seconds; ``note``: what they mean. granted:
    assumptions in addition
    to those of the threat model. limits: what a reader should know about the numbers. unit, scale:
    of a gain in
    figures. things: what leaks. least: a gain that is a leak. single: said after the result of one
    update. nothing: said where no attack gains more than ``least``.
    """

    columns: ClassVar[tuple[Column, ...]]
    note: ClassVar[str]
    granted: ClassVar[Mapping[str, str]]
    limits: ClassVar[str]
    unit: ClassVar[str]
    scale: ClassVar[float]
    things: ClassVar[str]
    least: ClassVar[float]
    single: ClassVar[str]
    nothing: ClassVar[str]
    attack: str
    batch: int
    blind: float
    mean_gain: float
    gain: Interval | None
    seconds: float
    unexplained: float | None = None

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
    unexplained = [one.unexplained for one in results if one.unexplained is not None]
    return {
        "attack": results[0].attack,
        "batch": batch,
        "blind": blind,
        "mean_gain": score - blind,
        "gain": mean_interval(gains) if len(gains) > 1 else None,
        "seconds": statistics.fmean(one.seconds for one in results),
        "unexplained": max(unexplained, default=None),
    }


@dataclass(frozen=True, kw_only=True)
class Best:
    """What the strongest attack gains over the blind guess in a run, in ``unit``, and the run's
    settings.

    sparsity: None for a method without one. sigma: noise over sensitivity of what was seen, 0
    without noise. low and
    high: ends of the 95 % interval over what was attacked; None for one of it.
    """

    method: str
    sparsity: float | None
    sigma: float
    attack: str
    unit: str
    gain: float
    low: float | None
    high: float | None


def best_of(rows: Sequence[Outcome], record: Record, observation: Observation) -> Best | None:
    """The strongest attack of the smallest batches."""
    known = [row for row in rows if split_name(row.attack)[1] != "naive"]
    smallest = [row for row in known if row.batch == min(other.batch for other in known)]
    if not smallest:
        return None
    row, settings = max(smallest, key=lambda row: row.mean_gain), record.base.settings
    return Best(
        method=settings.method,
        sparsity=settings.parameters.get("sparsity"),
        sigma=sigma_of(observation),
        attack=row.attack,
        unit=row.unit,
        gain=row.scale * row.mean_gain,
        low=None if row.gain is None else row.scale * row.gain.low,
        high=None if row.gain is None else row.scale * row.gain.high,
    )


def not_converged(rows: Sequence[Outcome]) -> str:
    """The first words of a verdict where no search explains its updates; empty where one does, or
    none searched.
    """
    left = [row.unexplained for row in rows if row.unexplained is not None]
    if not left or min(left) <= CONVERGED:
        return ""
    return (
        f"undecided, no search converged (the best guess leaves {100 * min(left):.0f} % of an "
        "update unexplained): no evidence of privacy; give more --seconds, or other --attacks"
    )


def judge(rows: Sequence[Outcome]) -> str:
    """Whether the strongest attack gets more than the blind guess, which needs no payload, in
    words.
    """
    if not rows:
        return (
            "no attack applies to these updates, for the given reasons: that is no proof of privacy"
        )
    best = max(
        rows, key=lambda row: (0.0 if row.gain is None else max(0.0, row.gain.low), row.mean_gain)
    )
    found = f"the strongest attack ({shown_name(best.attack)}, batch of {best.batch}) {best.result}"
    stuck = not_converged(rows)
    if stuck and (best.gain is None or best.gain.low <= 0):
        return f"{stuck}: {found}"
    if best.gain is None:
        return f"{found}{best.single}: too few for a verdict"
    found += best.reach
    if best.gain.low > best.least:
        return f"{LEAK} {best.things}: {found}"
    if best.gain.low > 0:
        return f"slightly better than a blind guess: {found}"
    if any(row.gain is None or row.gain.high > row.least for row in rows):
        return f"undecided, too few {best.things}: {found}"
    return f"{best.nothing}: {found}. {NOTHING}"


OF_ATTACK = (
    Column("attack", lambda row: split_name(row.attack)[0]),
    Column("form", lambda row: split_name(row.attack)[1], left=True),
    Column("batch", lambda row: row.batch),
)
"""The first columns of a table of attacks, a row for each attack and batch size."""
SECONDS = Column("seconds", lambda row: row.seconds, ".1f", optional=1)


def style_of(row: Any) -> RowKind:
    """The naive forms are dim."""
    return "dim" if split_name(row.attack)[1] == "naive" else ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """What attacks found on one run: for the page, the terminal and attack.json (``numbers``).

    facts: what was attacked, by name. shown: recovered images or texts. refused: why an attack did
    not apply, by its
    name. granted: assumptions in addition to those of the threat model. limits: what a reader
    should know about the
    numbers. best: of the strongest attack that is not naive; None if there is none.
    """

    label: str
    verdict: str
    facts: Mapping[str, str]
    table: Table
    shown: Gallery | TokenLines
    numbers: Mapping[str, Any]
    refused: Mapping[str, str]
    granted: Mapping[str, str]
    limits: str
    best: Best | None


def summaries(found: Results) -> list[Any]:
    """One row for each attack and batch size: the attack of the largest gain first, its naive form
    after it.
    """
    groups: dict[tuple[str, int], list[Any]] = {}
    for target, results in zip(found.targets, found.results, strict=True):
        for result in results:
            groups.setdefault((result.attack, len(target.truth.rows)), []).append(result)
    rows = [found.kind.outcome.of(some, batch) for (_, batch), some in groups.items()]
    known, best = {row.attack for row in rows}, dict[str, float]()
    for row in rows:
        name, form = split_name(row.attack)
        gain = -math.inf if form == "naive" and name in known else row.mean_gain
        best[name] = max(best.get(name, -math.inf), gain)

    def place(row: Any) -> tuple[float, str, bool, int]:
        name, form = split_name(row.attack)
        return -best[name], name, form == "naive", row.batch

    return sorted(rows, key=place)


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
    facts, more = kind.said(found)
    numbers = {
        "run": found.record.run.path.name,
        "membership_tpr_at_1_percent_fpr": found.membership,
        **more,
        "summary": [asdict(row) for row in rows],
        "updates": [
            {**update_numbers(of[0]), **kind.numbers(*of)}
            for of in zip(found.targets, found.blind, found.results, strict=True)
        ],
    }
    return Findings(
        label=found.record.base.settings.method,
        verdict=judge(rows),
        facts={**privacy_facts(found.record, seen, found.membership), **facts},
        table=make_table(
            (*OF_ATTACK, *words.columns, SECONDS), rows, style=style_of, note=words.note
        ),
        shown=kind.shown(found, list(dict.fromkeys(row.attack for row in rows))),
        numbers=numbers,
        refused=found.refused,
        granted=words.granted,
        limits=words.limits,
        best=best_of(rows, found.record, seen),
    )
