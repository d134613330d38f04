"""What a membership attack found, in words: tables, verdict, what was granted; the same in terminal and page."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlsg.attacks.audit.verdict import Claim
from fedlsg.attacks.membership.loss_threshold import LossThreshold
from fedlsg.attacks.membership.roc import LOW_RATES, Rate, Roc
from simulations.attack.membership.measure import Found, Limit, over_the_claim
from simulations.attack.membership.per_round import PerRound
from simulations.attack.membership.shadows import Trained
from simulations.settings.settings import Settings

GRANTED = {
    "candidates": "every example with its label and its client, but not whether it was in the training set: a fair "
    "coin, so that guessing is right half of the time",
    "data": "shadow models train on halves of the same examples: no attacker outside has data as close to the real",
    "algorithm": "every setting, sigma and the public seed: initial weights, carriers, masks, who is whose client",
    "sees": "the answers (logits) of the trained model, once an example; no payload, no round in between",
    "kept from it": "the coins of the target, its batches and its noise",
}
PER_ROUND = {
    "matched filter": "sees one client's payload of one round as it was sent, knows every other example of the batch; "
    "guessing finds as many members as it calls others members"
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """All that is said. own: the run's own model, its training against test examples, where there is a run."""

    settings: Settings
    models: Trained
    found: Sequence[Found]
    claim: Claim | None
    limits: tuple[Limit, ...]
    rounds: Sequence[PerRound]
    own: LossThreshold | None
    seed: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table, in the terminal and on the page."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def tables(report: Report) -> list[Table]:
    """The target, all models in turn, the run's own model, and single rounds."""
    members = int(report.models.inside[0].sum())
    count, others = len(report.models.inside), len(report.models.rows) - members
    columns = ("attack", "AUC", *(f"TPR at {100 * rate:g} % FPR" for rate in LOW_RATES))
    right = "right answers"
    half = Rate(value=0.5, low=0.5, high=0.5)
    guessing, bounds = ("guessing", "0.5", *(f"{100 * rate:g} %" for rate in LOW_RATES)), _bounds(report.limits)
    made = [
        Table(
            title=f"{count} models, each the target in turn",
            columns=columns,
            rows=(guessing, *((one.attack, *_cells(one.in_turn)) for one in report.found), *bounds),
            note="In brackets: 95 % over the choice of candidates (bootstrap); the models share their shadows, which "
            "the intervals do not hold.",
        ),
        Table(
            title=f"One target: {members} members, {others} others",
            columns=(columns[0], right, *columns[1:]),
            rows=(
                (guessing[0], _percent(half.value), *guessing[1:]),
                *((one.attack, _rate(one.success, 1), *_cells(one.target)) for one in report.found),
                *((name, "", *cells) for name, *cells in bounds),
            ),
            note="In brackets: 95 % intervals, DeLong's for the AUC, exact for rates. Right answers: Yu et al. 2021 "
            "(RGP), Table 5, a threshold found on half of the examples and counted on the others.",
        ),
    ]
    if report.own is not None:
        own = report.own
        made.append(
            Table(
                title="The run's own model: its training examples against the test split",
                columns=("attack", right, *columns[1:]),
                rows=(
                    (guessing[0], _percent(0.5), *guessing[1:]),
                    ("loss threshold", _rate(own.success, 1), *_cells(own.roc)),
                ),
                note=f"The data of the paper's Table 5, {own.examples} examples; both splits may differ by more than "
                "membership. LiRA needs models without an example and cannot be asked here.",
            )
        )
    if report.rounds:
        made.append(_per_round(report.rounds))
    return made


def _per_round(rounds: Sequence[PerRound]) -> Table:
    first = rounds[0]
    unlike = "" if first.clipped else " The example played with is shorter than the clip, so that it is found less."
    return Table(
        title=f"One payload of one round, matched filter, sigma_eff {first.sigma:.4g}",
        columns=("guessing (FPR)", "closed form TPR", "played: FPR", "played: TPR"),
        rows=tuple(
            (
                f"{100 * one.fpr:g} %",
                f"{100 * one.closed_form:.2f} %",
                "too large" if one.played is None else _rate(one.played.fpr),
                "too large" if one.played is None else _rate(one.played.tpr),
            )
            for one in rounds
        ),
        note="Closed form: TPR = Phi(Phi^-1(FPR) + 1 / sigma_eff), for a clipped example that took part. Played: "
        f"payloads with and without an example through the shipped clip and noise, first frame.{unlike}",
    )


def _bounds(limits: Sequence[Limit]) -> list[tuple[str, ...]]:
    if not limits:
        return [("bound", *["no claim"] * (1 + len(LOW_RATES)))]
    return [(one.name, f"{one.auc:.3f}", *(_percent(one.bound(rate)) for rate in LOW_RATES)) for one in limits]


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
    """What the strongest attack gets, against guessing and against the claim, in words."""
    above = over_the_claim(report.found, report.limits)
    text = _strongest(report.found)
    for name, what in above.items():
        text += f" {name} is above what the claim allows ({what}): ask fedlsg audit."
    if not report.limits:
        return f"{text} No epsilon is claimed: nothing bounds a stronger attacker."
    allowed = min(one.bound(LOW_RATES[0]) for one in report.limits)
    return text if above else f"{text} The claim allows any attacker up to {_percent(allowed)} there."


def _strongest(found: Sequence[Found]) -> str:
    """The best attack at 1 % false alarms, or that it is told from guessing by the AUC alone, or not at all."""
    rate = LOW_RATES[0]
    tprs = {one.attack: one.in_turn.tpr[rate] for one in found}
    aucs = {one.attack: one.in_turn.auc for one in found}
    above, wide = (
        {name: of[name] for name in of if of[name].low > guess} or of for of, guess in ((tprs, rate), (aucs, 0.5))
    )
    best, widest = (max(of, key=lambda name, of=of: of[name].value) for of in (above, wide))  # type: ignore[misc]
    at = f"at {100 * rate:g} % false alarms (guessing: {100 * rate:g} %)"
    if any(tpr.low > rate for tpr in tprs.values()):
        plain = "" if best == "loss threshold" else f"; the loss threshold {_rate(tprs['loss threshold'])}"
        return f"{best} names {_rate(tprs[best])} of the members {at}{plain}."
    if any(auc.low > 0.5 for auc in aucs.values()):
        return (
            f"{widest} tells members from others better than guessing, AUC {_area(aucs[widest])} (guessing: 0.5), but "
            f"none of these attacks does {at}: the best, {best}, names {_rate(tprs[best])} of the members."
        )
    return (
        f"None of these attacks is told from guessing: the best, {best}, names {_rate(tprs[best])} of the members {at}."
    )


def facts(report: Report) -> str:
    """How the models were made, in a sentence."""
    s, accuracy = report.settings, report.models.accuracy
    claim = "no epsilon is claimed" if report.claim is None else (
        f"sigma_eff {report.claim.noise_multiplier:.4g}, epsilon {report.claim.epsilon:.3f} at delta "
        f"{report.claim.delta:g} by the planned schedule"
    )  # fmt: skip
    return (
        f"{len(accuracy) - 1} shadow models and a target, each trained on a random half of the training set of "
        f"{s.workload} ({s.model}, method {s.method}, {s.clients} clients, {s.rounds} rounds), with the run's "
        f"sigma and sample rate; {claim}. Test accuracy {100 * np.mean(accuracy):.1f} % on average."
    )


def granted(report: Report) -> dict[str, str]:
    """The assumptions in words, guessing beside them."""
    return GRANTED | (PER_ROUND if report.rounds else {})
