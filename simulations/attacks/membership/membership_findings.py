"""Findings of a membership attack, for the terminal and the page: tables, verdict, assumptions."""

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
from fedlsg.simulations.report.words import epsilon_words
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.workloads.base.split import Chance, beats_chance

# Keys of the next three are rows of the page, and of membership.json.
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
SEEN_AT_MOST = {
    "client": "all payloads of all rounds",
    "aggregate": "the sums of all rounds, and no single payload",
    "secure": "the sums of all rounds, and what {readers} clients know",
    "server": "the weights of all rounds, and no update",
}
"""By trust: the most that an attacker may see for the claim to bound its rates."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """The results of a membership attack.

    settings: of the models.
    models: the target and its shadows.
    found: the result of each attack by shadow models.
    claim: the claimed epsilon; None without a claim.
    limits: the largest rates that the claim allows; empty without a claim.
    own: attacks on the run's own model and payloads, by name; empty without a run.
    seed: repeats all draws and the noise.
    seconds: of the whole command.
    test_examples: of the public test split, on which every model's accuracy is measured; 0 if
        unknown.
    chance: the accuracy of guessing there; None without classes.
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
        """Rates of all attacks of the table, by the name in the verdict."""
        return self._each("in_turn", "roc")

    @property
    def above(self) -> Mapping[str, str]:
        """By name, attacks that are above what the claim allows, and where."""
        return over_the_claim(self._each("sure", "sure"), self.limits)

    def _each(self, field: str, own_field: str) -> Mapping[str, Roc]:
        """A field of each result in ``found``, and another one of each in ``own``, by name."""
        rates = {result.attack: getattr(result, field) for result in self.found}
        for name, outcome in self.own.items():
            rates[name_on_run(name)] = getattr(outcome, own_field)
        return rates


def name_on_run(name: str) -> str:
    """The name of an attack on the run's own model or payloads."""
    return f"{name} on the run itself"


RATE_COLUMNS = tuple(f"TPR at {100 * rate:g} % FPR" for rate in LOW_RATES)
"""Columns of the table."""


def tables(report: Report) -> list[Table]:
    """One table: guessing, all models in turn, the run itself, and what the claim allows."""
    models, found, own = len(report.models.inside), report.found, report.own
    rows = [
        Row(
            cells=("guessing", *(f"{100 * rate:g} %" for rate in LOW_RATES), "0.5", "50 %"),
            style="reference",
        ),
        *(_row(result.attack, result.in_turn, result.success) for result in found),
        *(_row(name_on_run(name), outcome.roc, outcome.success) for name, outcome in own.items()),
        *(Row(cells=cells) for cells in _bound_rows(report.limits)),
    ]
    note = (
        "TPR: members found; FPR: others wrongly called members. "
        f"{models} models, each the target in turn. {_interval_note(len(report.rows))} (bootstrap "
        "over the candidates; exact on the run itself). They do not cover that the models share "
        f"their shadows.{_differences(found)} "
        "Right answers: of the first target, as in Yu et al. 2021 (RGP), Table 5."
    )
    if own:
        outcome = next(iter(own.values()))  # the attacks on the model are before that on payloads
        note += (
            f" On the run's own model: {outcome.members} training examples against "
            f"{outcome.others} of the test split, the other half of which is public. The two "
            "splits may differ in more than membership."
        )
    return [
        Table(
            title="Attacks",
            columns=("attack", *RATE_COLUMNS, "AUC", "right answers"),
            rows=tuple(rows),
            note=note,
        )
    ]


def _interval_note(attacks: int) -> str:
    """The note on what the intervals of the table cover."""
    return (
        f"In brackets: intervals that hold with {100 * (1 - INTERVAL_ERROR):g} % confidence for "
        f"all {attacks} attacks and both figures of the verdict together"
    )


def _row(name: str, rates: Roc, success: Rate) -> Row:
    tpr = (_rate_words(rates.tpr[rate]) for rate in LOW_RATES)
    return Row(cells=(name, *tpr, _auc_words(rates.auc), _rate_words(success, 1)))


def _differences(found: Sequence[Found]) -> str:
    """The difference of each attack to the first one, on the same candidates; may be empty."""
    first, *others = found
    words = []
    for other in others:
        if (difference := paired_difference(other, first)) is not None:
            low, high = 100 * difference.low, 100 * difference.high
            value = 100 * difference.value
            words.append(f"{other.attack} {value:+.2f} points [{low:+.2f}, {high:+.2f}]")
    if not words:
        return ""
    return (
        f" TPR at {100 * LOW_RATES[0]:g} % FPR less that of the {first.attack}, paired by "
        f"candidate, each with 95 %: {'; '.join(words)}."
    )


def _seen_at_most(settings: Settings) -> str:
    """The most that an attacker may see under the settings' trust."""
    readers = max(1, settings.colluders or 0)
    return SEEN_AT_MOST[settings.trust].format(readers=readers)


def _bound_rows(limits: Sequence[Limit]) -> list[tuple[str, ...]]:
    """The cells of each limit; without a claim one row that says so."""
    if not limits:
        return [("bound", *["no claim"] * len(LOW_RATES), "no claim", "")]
    return [
        (limit.name, *(_percent(limit.bound(rate)) for rate in LOW_RATES), f"{limit.auc:.3f}", "")
        for limit in limits
    ]


def _auc_words(auc: Rate) -> str:
    return f"{auc.value:.3f} [{auc.low:.3f}, {auc.high:.3f}]"


def _rate_words(rate: Rate, digits: int = 2) -> str:
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
"""Verdicts in a few words, and their colour."""


def badge_of(report: Report) -> tuple[str, Badge]:
    """The verdict in a few words; not green for models that learned nothing."""
    grade = grade_of(report)
    if grade == "none" and at_guessing(report) is not None:
        return "no attack succeeded, on models that learned nothing", "limited"
    return BADGES[grade]


def grade_of(report: Report) -> Grade:
    """The grade of the best of all attacks of the table, those on the run itself included."""
    rows, rate = report.rows.values(), LOW_RATES[0]
    if report.above or any(row.tpr[rate].low > rate for row in rows):
        return "members"
    return "better" if any(row.auc.low > 0.5 for row in rows) else "none"


def verdict(report: Report) -> str:
    """The rate of the strongest attack, compared with guessing and with the claim."""
    text = _strongest_words(report.rows)
    for name, what in report.above.items():
        text += f" {name} is above what the claim allows ({what}): run fedlsg audit."
        if name not in {result.attack for result in report.found}:
            text += " Or training and test split differ in more than membership."
    if not report.limits:
        return f"{text} No epsilon is claimed: nothing bounds a stronger attacker."
    if report.above:
        return text
    allowed = _percent(min(limit.bound(LOW_RATES[0]) for limit in report.limits))
    attacker = f"any attacker that sees {_seen_at_most(report.settings)}"
    return f"{text} Nothing contradicts the claim, which allows {attacker} at most {allowed} there."


def strongest(rows: Mapping[str, Roc]) -> str:
    """The name of the attack for the verdict.

    It is the best of those above guessing at 1 % false alarms, else of those whose AUC is above
    guessing, else of all.
    """
    rate = LOW_RATES[0]
    by_rate = [name for name, row in rows.items() if row.tpr[rate].low > rate]
    by_auc = [name for name, row in rows.items() if row.auc.low > 0.5]
    if by_auc and not by_rate:
        return max(by_auc, key=lambda name: rows[name].auc.value)
    return max(by_rate or rows, key=lambda name: rows[name].tpr[rate].value)


def _strongest_words(rows: Mapping[str, Roc]) -> str:
    """The strongest attack at 1 % false alarms in a sentence.

    It says whether the rate, only the AUC, or nothing distinguishes the attack from guessing.
    """
    rate, best = LOW_RATES[0], strongest(rows)
    tpr, auc = rows[best].tpr[rate], rows[best].auc
    members = f"{_rate_words(tpr)} of the members"
    alarms = f"at {100 * rate:g} % false alarms (guessing: {100 * rate:g} %)"
    subject = f"{best}, the strongest of {len(rows)} attacks,"
    if tpr.low > rate:
        return f"{subject} finds {members} {alarms}."
    if auc.low > 0.5:
        return (
            f"{subject} distinguishes members from others better than guessing, AUC "
            f"{_auc_words(auc)} (guessing: 0.5), but none of them does {alarms}: it finds "
            f"{members}."
        )
    low, high = 100 * tpr.low, 100 * tpr.high
    return (
        f"None of {len(rows)} attacks can be distinguished from guessing: the best, {best}, finds "
        f"between {low:.2f} and {high:.2f} % of the members {alarms}; {100 * tpr.value:.2f} % were "
        "measured."
    )


def facts(report: Report) -> dict[str, str]:
    """Facts by name: how the models were made, their accuracy, and the claim."""
    settings = report.settings
    lines = {
        "models": f"a target and {len(report.models.inside) - 1} shadows, each trained on a random "
        f"half of the {'clients' if unit_named(settings.unit).whole else 'training set'}",
        "trains": f"{settings.model} on {settings.workload}, method {settings.method}, "
        f"{settings.clients} clients, {settings.rounds} rounds, with the sigma and the sample rate "
        "of a whole run",
        **_accuracy_facts(report),
    }
    if report.claim is None:
        return {**lines, "epsilon": "none is claimed"}
    claim = report.claim
    return {
        **lines,
        "sigma": f"{claim.noise_multiplier:.4g} (effective)",
        "epsilon": f"{epsilon_words(claim.epsilon)} at delta {claim.delta:g}, by the planned "
        "schedule",
    }


def _accuracy_facts(report: Report) -> dict[str, str]:
    """Facts about the models' accuracy and its standard error; empty if targets are no classes."""
    if report.models.accuracy is None:
        return {}
    accuracy = 100 * np.array(report.models.accuracy)
    spread = ""
    if len(accuracy) > 1:
        spread = f", standard deviation over the models {accuracy.std(ddof=1):.1f} points"
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
    """A warning if the attacked models learned nothing that an attack could find; else None."""
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
    """The assumptions in words, by name."""
    unit = unit_named(report.settings.unit)
    if unit.whole:
        return GRANTED_OF_CLIENTS
    return GRANTED | GRANTED_OF_PERSONS if unit.persons else GRANTED


def bounded(report: Report) -> str:
    """The note on the attackers for whom the bounds hold."""
    return (
        "The bounds hold for every attacker, even one that sees "
        f"{_seen_at_most(report.settings)}. They follow from the claim and were not measured."
    )
