"""What a membership attack found: tables, verdict and assumptions, for the terminal and the
page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedlsg.attacks.audit.verdict import Claim
from fedlsg.attacks.membership import LossThreshold
from fedlsg.attacks.metrics import LOW_RATES, Rate, Roc
from fedlsg.config.units import UNITS
from fedlsg.simulations.attacks.membership.loss_and_lira import (
    Found,
    Limit,
    over_the_claim,
    paired_difference,
)
from fedlsg.simulations.attacks.membership.shadows import Trained
from fedlsg.simulations.report.page import Row, RowKind, Table
from fedlsg.simulations.settings.settings import Settings

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
ALL = {
    "client": "all payloads of all rounds",
    "aggregate": "the sums of all rounds, and no single payload",
    "secure": "the sums of all rounds, and what {readers} clients know",
    "server": "the weights of all rounds, and no update",
}
"""What an attacker may see that the claim bounds, by trust."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """Everything that is reported. own: training against test examples on the run's own model, if
    there is a run.

    test_examples: of the public test split, on which every model's accuracy is measured; 0 if
    unknown.
    """

    settings: Settings
    models: Trained
    found: Sequence[Found]
    claim: Claim | None
    limits: tuple[Limit, ...]
    own: LossThreshold | None
    seed: int
    seconds: float
    test_examples: int = 0


def tables(report: Report) -> list[Table]:
    """All models in turn, the target alone, and the run's own model."""
    members, found, own = int(report.models.inside[0].sum()), report.found, report.own
    made = [
        _rates(
            f"{len(report.models.inside)} models, each the target in turn",
            "In brackets: 95 % intervals over the choice of candidates (bootstrap). They do not "
            f"cover that the models share their shadows.{_differences(found)}",
            [(one.attack, None, one.in_turn) for one in found],
            _bounds(report.limits),
        ),
        _rates(
            f"One target: {members} members, {len(report.models.rows) - members} others",
            "In brackets: 95 % intervals, DeLong's for the AUC, exact for rates. Right answers: as "
            "in Yu et al. 2021 (RGP), Table 5, with a threshold found on half of the examples and "
            "counted on the other half.",
            [(one.attack, one.success, one.target) for one in found],
            _bounds(report.limits),
        ),
    ]
    if own is not None:
        made.append(
            _rates(
                "The run's own model: its training examples against the test split",
                f"The data of Yu et al. 2021, Table 5, {own.examples} examples. The two splits may "
                "differ in more than membership. LiRA needs models trained without an example, so "
                "it cannot be used here.",
                [("loss threshold", own.success, own.roc)],
            )
        )
    return made


RATES = tuple(f"TPR at {100 * rate:g} % FPR" for rate in LOW_RATES)
GUESSING = ("0.5", *(f"{100 * rate:g} %" for rate in LOW_RATES))
"""AUC and rates of guessing."""


def _rates(
    title: str,
    note: str,
    found: Sequence[tuple[str, Rate | None, Roc]],
    bounds: Sequence[tuple[str, ...]] = (),
) -> Table:
    """A row for each attack next to guessing, and what the claim allows; with its right answers
    where they count.
    """
    answers = any(success for _, success, _ in found)

    def row(name: str, success: str, *cells: str, style: RowKind = "") -> Row:
        return Row(cells=(name, *([success] if answers else []), *cells), style=style)

    return Table(
        title=title,
        columns=("attack", *(["right answers"] if answers else []), "AUC", *RATES),
        rows=(
            row("guessing", _percent(0.5), *GUESSING, style="reference"),
            *(
                row(name, "" if right is None else _rate(right, 1), *_cells(roc))
                for name, right, roc in found
            ),
            *(row(name, "", *cells) for name, *cells in bounds),
        ),
        note=note,
    )


def _differences(found: Sequence[Found]) -> str:
    """Each attack compared with the first one, on the same candidates."""
    first, words = found[0], []
    for one in found[1:]:
        found_rate = paired_difference(one, first)
        if found_rate is not None:
            value, low, high = (
                100 * part for part in (found_rate.value, found_rate.low, found_rate.high)
            )
            words.append(f"{one.attack} {value:+.2f} points [{low:+.2f}, {high:+.2f}]")
    at = f"{100 * LOW_RATES[0]:g} % FPR"
    return (
        f" TPR at {at} less that of the {first.attack}, paired by candidate: {'; '.join(words)}."
        if words
        else ""
    )


def _in(settings: Settings, words: Mapping[str, str]) -> str:
    """The words for the settings' trust mode."""
    readers = max(1, settings.colluders or 0)
    return words[settings.trust].format(readers=readers, unit=settings.unit)


def _bounds(limits: Sequence[Limit]) -> list[tuple[str, ...]]:
    if not limits:
        return [("bound", *["no claim"] * (1 + len(LOW_RATES)))]
    return [
        (one.name, f"{one.auc:.3f}", *(_percent(one.bound(rate)) for rate in LOW_RATES))
        for one in limits
    ]


def _cells(found: Roc) -> list[str]:
    return [_area(found.auc), *(_rate(found.tpr[rate]) for rate in LOW_RATES)]


def _area(auc: Rate) -> str:
    return f"{auc.value:.3f} [{auc.low:.3f}, {auc.high:.3f}]"


def _rate(rate: Rate, digits: int = 2) -> str:
    value, low, high = (f"{100 * part:.{digits}f}" for part in (rate.value, rate.low, rate.high))
    return f"{value} % [{low}, {high}]"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.9995 else "100 %"


def verdict(report: Report) -> str:
    """What the strongest attack reaches, compared with guessing and with the claim."""
    above = over_the_claim(report.found, report.limits)
    text = _strongest(report.found)
    for name, what in above.items():
        text += f" {name} is above what the claim allows ({what}): run fedlsg audit."
    if not report.limits:
        return f"{text} No epsilon is claimed: nothing bounds a stronger attacker."
    allowed = min(one.bound(LOW_RATES[0]) for one in report.limits)
    bounded = f"for any attacker that sees {_in(report.settings, ALL)}"
    return (
        text if above else f"{text} The claim allows at most {_percent(allowed)} there, {bounded}."
    )


def _strongest(found: Sequence[Found]) -> str:
    """The best attack at 1 % false alarms; or whether only the AUC, or nothing, distinguishes it
    from guessing.
    """
    rate = LOW_RATES[0]
    tprs = {one.attack: one.in_turn.tpr[rate] for one in found}
    aucs = {one.attack: one.in_turn.auc for one in found}
    above, wide = (
        {name: of[name] for name in of if of[name].low > guess} or of
        for of, guess in ((tprs, rate), (aucs, 0.5))
    )
    best, widest = (max(of, key=lambda name, of=of: of[name].value) for of in (above, wide))  # type: ignore[misc]
    at = f"at {100 * rate:g} % false alarms (guessing: {100 * rate:g} %)"
    if any(tpr.low > rate for tpr in tprs.values()):
        plain = (
            ""
            if best == "loss threshold"
            else f"; the loss threshold {_rate(tprs['loss threshold'])}"
        )
        return f"{best} finds {_rate(tprs[best])} of the members {at}{plain}."
    if any(auc.low > 0.5 for auc in aucs.values()):
        return (
            f"{widest} distinguishes members from others better than guessing, AUC "
            f"{_area(aucs[widest])} (guessing: 0.5), but none of these attacks does {at}: the "
            f"best, {best}, finds {_rate(tprs[best])} of the members."
        )
    return (
        f"None of these attacks can be distinguished from guessing: the best, {best}, finds "
        f"{_rate(tprs[best])} of the members {at}."
    )


def facts(report: Report) -> dict[str, str]:
    """How the models were made, their accuracy, and the claim, by name."""
    s = report.settings
    found = {
        "models": f"a target and {len(report.models.inside) - 1} shadows, each trained on a random "
        f"half of the {'clients' if UNITS[s.unit].whole else 'training set'}",
        "trains": f"{s.model} on {s.workload}, method {s.method}, {s.clients} clients, {s.rounds} "
        "rounds, with the sigma and the sample rate of a whole run",
        **_accuracy(report),
    }
    if report.claim is None:
        return {**found, "epsilon": "none is claimed"}
    claim = report.claim
    return {
        **found,
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
    found = {"test accuracy": f"mean {accuracy.mean():.1f} %{spread}"}
    if report.test_examples:
        share = float(accuracy.mean()) / 100
        error = 100 * np.sqrt(share * (1 - share) / report.test_examples)
        found["test set"] = (
            f"{report.test_examples:,} examples: standard error {error:.1f} points, which all "
            "models share"
        )
    return found


def granted(report: Report) -> dict[str, str]:
    """The assumptions in words."""
    return GRANTED_OF_CLIENTS if UNITS[report.settings.unit].whole else GRANTED


def bounded(report: Report) -> str:
    """Whom the bounds hold for."""
    return (
        f"The bounds hold for every attacker, even one that sees {_in(report.settings, ALL)}. They "
        "follow from the claim and were not measured."
    )
