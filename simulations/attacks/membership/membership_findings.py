"""What a membership attack found: tables, verdict and assumptions, for the terminal and the
page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from fedlsg.attacks.audit.verdict import Claim
from fedlsg.attacks.roc import LOW_RATES, Rate, Roc
from fedlsg.config.units import unit_named
from fedlsg.simulations.attacks.membership.measure import (
    INTERVAL_ERROR,
    Found,
    Limit,
    over_the_claim,
    paired_difference,
)
from fedlsg.simulations.attacks.membership.own_model import OwnAttack
from fedlsg.simulations.attacks.membership.shadows import Trained
from fedlsg.simulations.report.pages.page import Badge, Row, Table
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.workloads.base.split import Chance, beats_chance

GRANTED = {
    "candidates": "every example with its label and its client, but not whether it was in the "
    "training set; each was, with probability 1/2, so guessing is right half of the "
    "time",
    "data": "shadow models train on halves of the same examples; an attacker outside has no data "
    "that are as close",
    "algorithm": "every setting, sigma and the public seed: initial weights, carriers, masks, the "
    "client of each example",
    "sees": "the outputs of the trained model, once for each example; no payload and no earlier "
    "round",
    "secret": "which examples the target was trained on, its batches and its noise",
}
GRANTED_OF_CLIENTS = {
    "candidates": "every client with all of its examples, but not whether it was in the "
    "federation; each was, with probability 1/2. A client's score is the mean over "
    "its examples",
    "data": "shadow models train on halves of the same clients; an attacker outside has no data "
    "that are as close",
    "algorithm": "every setting, sigma and the public seed: initial weights, carriers, masks",
    "sees": "the outputs of the trained model on all examples; no payload and no earlier round",
    "secret": "which clients there were, which were drawn in a round, their batches and the noise",
}
GRANTED_OF_PERSONS = {
    "candidates": "every person with all rows and its client, but not whether it was in the "
    "training set; each was, with probability 1/2. A person's score is the mean over its rows",
    "data": "shadow models train on halves of the same persons; an attacker outside has no data "
    "that are as close",
    "sees": "the outputs of the trained model on all rows; no payload and no earlier round",
    "secret": "which persons the target was trained on, its batches and its noise",
}
ALL = {
    "client": "all payloads of all rounds",
    "aggregate": "the sums of all rounds, and no single payload",
    "secure": "the sums of all rounds, and what {readers} clients know",
    "server": "the weights of all rounds, and no update",
}
"""What an attacker may see that the claim bounds, by trust."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """Everything that is reported. own: attacks on the run's own model and payloads, if there is a
    run.

    test_examples: of the public test split, on which every model's accuracy is measured; 0 if
    unknown. chance: the accuracy of guessing there; None without classes.
    """

    settings: Settings
    models: Trained
    found: Sequence[Found]
    claim: Claim | None
    limits: tuple[Limit, ...]
    own: Mapping[str, OwnAttack]
    seed: int
    seconds: float
    test_examples: int = 0
    chance: Chance | None = None

    @property
    def rows(self) -> Mapping[str, Roc]:
        """All attacks of the table, by the name that the verdict gives them."""
        return self._each("in_turn", "roc")

    @property
    def above(self) -> Mapping[str, str]:
        """Those that are above what the claim allows, and where."""
        return over_the_claim(self._each("sure", "sure"), self.limits)

    def _each(self, found: str, own: str) -> Mapping[str, Roc]:
        known = {outcome.attack: getattr(outcome, found) for outcome in self.found}
        return known | {on_run(name): getattr(outcome, own) for name, outcome in self.own.items()}


def on_run(name: str) -> str:
    """What an attack on the run's own model or payloads is called."""
    return f"{name} on the run itself"


RATES = tuple(f"TPR at {100 * rate:g} % FPR" for rate in LOW_RATES)


def tables(report: Report) -> list[Table]:
    """One table: all models in turn, the run itself, guessing, and what the claim allows."""
    models, found, own = len(report.models.inside), report.found, report.own
    rows = [
        Row(
            cells=("guessing", *(f"{100 * rate:g} %" for rate in LOW_RATES), "0.5", "50 %"),
            style="reference",
        ),
        *(_row(outcome.attack, outcome.in_turn, outcome.success) for outcome in found),
        *(_row(on_run(name), outcome.roc, outcome.success) for name, outcome in own.items()),
        *(Row(cells=cells) for cells in _bounds(report.limits)),
    ]
    note = (
        "TPR: members found; FPR: others wrongly called members. "
        f"{models} models, each the target in turn. {_in_brackets(len(report.rows))} (bootstrap "
        "over the candidates; exact on the run itself). They do not cover that the models share "
        f"their shadows.{_differences(found)} "
        "Right answers: of the first target, as in Yu et al. 2021 (RGP), Table 5."
    )
    if own:
        outcome = next(iter(own.values()))
        note += (
            f" On the run's own model: {outcome.members} training examples against "
            f"{outcome.others} of the test split, the other half of which is public. The two "
            "splits may differ in more than membership."
        )
    return [
        Table(
            title="Attacks",
            columns=("attack", *RATES, "AUC", "right answers"),
            rows=tuple(rows),
            note=note,
        )
    ]


def _in_brackets(attacks: int) -> str:
    """What the intervals cover."""
    return (
        f"In brackets: intervals that hold with {100 * (1 - INTERVAL_ERROR):g} % confidence for "
        f"all {attacks} attacks and both figures of the verdict together"
    )


def _row(name: str, found: Roc, right: Rate) -> Row:
    rates = (_rate(found.tpr[rate]) for rate in LOW_RATES)
    return Row(cells=(name, *rates, _area(found.auc), _rate(right, 1)))


def _differences(found: Sequence[Found]) -> str:
    """Each attack compared with the first one, on the same candidates."""
    first, words = found[0], []
    for other in found[1:]:
        found_rate = paired_difference(other, first)
        if found_rate is not None:
            value, low, high = (
                100 * part for part in (found_rate.value, found_rate.low, found_rate.high)
            )
            words.append(f"{other.attack} {value:+.2f} points [{low:+.2f}, {high:+.2f}]")
    at = f"{100 * LOW_RATES[0]:g} % FPR"
    return (
        f" TPR at {at} less that of the {first.attack}, paired by candidate, each with 95 %: "
        f"{'; '.join(words)}."
        if words
        else ""
    )


def _in(settings: Settings, words: Mapping[str, str]) -> str:
    """The words for the settings' trust mode."""
    readers = max(1, settings.colluders or 0)
    return words[settings.trust].format(readers=readers, unit=settings.unit)


def _bounds(limits: Sequence[Limit]) -> list[tuple[str, ...]]:
    if not limits:
        return [("bound", *["no claim"] * len(LOW_RATES), "no claim", "")]
    return [
        (limit.name, *(_percent(limit.bound(rate)) for rate in LOW_RATES), f"{limit.auc:.3f}", "")
        for limit in limits
    ]


def _area(auc: Rate) -> str:
    return f"{auc.value:.3f} [{auc.low:.3f}, {auc.high:.3f}]"


def _rate(rate: Rate, digits: int = 2) -> str:
    value, low, high = (f"{100 * part:.{digits}f}" for part in (rate.value, rate.low, rate.high))
    return f"{value} % [{low}, {high}]"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.9995 else "100 %"


Grade = Literal["members", "better", "none"]
BADGES: Mapping[Grade, tuple[str, Badge]] = MappingProxyType(
    {
        "members": ("an attack found members", "bad"),
        "better": (
            f"better than guessing, but not at {100 * LOW_RATES[0]:g} % false alarms",
            "limited",
        ),
        "none": ("no attack succeeded", "good"),
    }
)
"""Verdicts in a few words."""


def badge_of(report: Report) -> tuple[str, Badge]:
    """The verdict in a few words; not green for models that learned nothing."""
    grade = grade_of(report)
    if grade == "none" and at_guessing(report) is not None:
        return "no attack succeeded, on models that learned nothing", "limited"
    return BADGES[grade]


def grade_of(report: Report) -> Grade:
    """What the best of all attacks of the table shows, those on the run itself included: badge and
    verdict are made of it.
    """
    rows, rate = report.rows.values(), LOW_RATES[0]
    if report.above or any(row.tpr[rate].low > rate for row in rows):
        return "members"
    return "better" if any(row.auc.low > 0.5 for row in rows) else "none"


def verdict(report: Report) -> str:
    """What the strongest attack reaches, compared with guessing and with the claim."""
    text = _words(report.rows)
    for name, what in report.above.items():
        text += f" {name} is above what the claim allows ({what}): run fedlsg audit."
        if name not in {one.attack for one in report.found}:
            text += " Or training and test split differ in more than membership."
    if not report.limits:
        return f"{text} No epsilon is claimed: nothing bounds a stronger attacker."
    allowed = min(one.bound(LOW_RATES[0]) for one in report.limits)
    bounded = f"for any attacker that sees {_in(report.settings, ALL)}"
    return (
        text
        if report.above
        else f"{text} The claim allows at most {_percent(allowed)} there, {bounded}."
    )


def strongest(rows: Mapping[str, Roc]) -> str:
    """The attack that the verdict names: the best of those above guessing at 1 % false alarms, else
    of those whose AUC is, else of all.
    """
    rate = LOW_RATES[0]
    above = [name for name, row in rows.items() if row.tpr[rate].low > rate]
    if not above and (wide := [name for name, row in rows.items() if row.auc.low > 0.5]):
        return max(wide, key=lambda name: rows[name].auc.value)
    return max(above or rows, key=lambda name: rows[name].tpr[rate].value)


def _words(rows: Mapping[str, Roc]) -> str:
    """What the strongest attack reaches at 1 % false alarms; or whether only its AUC, or nothing,
    distinguishes it from guessing.
    """
    rate, best = LOW_RATES[0], strongest(rows)
    tpr, auc = rows[best].tpr[rate], rows[best].auc
    at = f"at {100 * rate:g} % false alarms (guessing: {100 * rate:g} %)"
    tried = f"the strongest of {len(rows)} attacks"
    if tpr.low > rate:
        return f"{best}, {tried}, finds {_rate(tpr)} of the members {at}."
    if auc.low > 0.5:
        return (
            f"{best}, {tried}, distinguishes members from others better than guessing, AUC "
            f"{_area(auc)} (guessing: 0.5), but none of them does {at}: it finds {_rate(tpr)} of "
            "the members."
        )
    return (
        f"None of {len(rows)} attacks can be distinguished from guessing: the best, "
        f"{best}, finds {_rate(tpr)} of the members {at}."
    )


def facts(report: Report) -> dict[str, str]:
    """How the models were made, their accuracy, and the claim, by name."""
    s = report.settings
    lines = {
        "models": f"a target and {len(report.models.inside) - 1} shadows, each trained on a random "
        f"half of the {'clients' if unit_named(s.unit).whole else 'training set'}",
        "trains": f"{s.model} on {s.workload}, method {s.method}, {s.clients} clients, {s.rounds} "
        "rounds, with the sigma and the sample rate of a whole run",
        **_accuracy(report),
    }
    if report.claim is None:
        return {**lines, "epsilon": "none is claimed"}
    claim = report.claim
    return {
        **lines,
        "sigma": f"{claim.noise_multiplier:.4g} (effective)",
        "epsilon": f"{claim.epsilon:.3f} at delta {claim.delta:g}, by the planned schedule",
    }


def _accuracy(report: Report) -> dict[str, str]:
    """Of the models, and its standard error; nothing where targets are no classes."""
    if report.models.accuracy is None:
        return {}
    accuracy = 100 * np.array(report.models.accuracy)
    spread = (
        f", standard deviation over the models {accuracy.std(ddof=1):.1f} points"
        if len(accuracy) > 1
        else ""
    )
    lines = {"test accuracy": f"mean {accuracy.mean():.1f} %{spread}"}
    if report.test_examples:
        share = float(accuracy.mean()) / 100
        error = 100 * np.sqrt(share * (1 - share) / report.test_examples)
        lines["test set"] = (
            f"{report.test_examples:,} examples: standard error {error:.1f} points, which all "
            "models share"
        )
    return lines


def at_guessing(report: Report) -> str | None:
    """A warning where the attacked models have learned nothing that an attack could find."""
    if report.models.accuracy is None or report.chance is None:
        return None
    if beats_chance(report.models.accuracy, report.chance):
        return None
    return (
        f"The attacked models are at the accuracy of guessing ({report.chance.level:.0%}): they "
        "learned nothing that an attack could find. That no attack succeeds here says nothing of "
        "the method; attack a run that learns."
    )


def granted(report: Report) -> dict[str, str]:
    """The assumptions in words."""
    unit = unit_named(report.settings.unit)
    of_persons = GRANTED | GRANTED_OF_PERSONS
    return GRANTED_OF_CLIENTS if unit.whole else of_persons if unit.persons else GRANTED


def bounded(report: Report) -> str:
    """Whom the bounds hold for."""
    return (
        f"The bounds hold for every attacker, even one that sees {_in(report.settings, ALL)}. They "
        "follow from the claim and were not measured."
    )
