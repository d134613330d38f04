"""membership.json and membership.html: rates next to guessing and to what the claim allows, and assumptions."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedlsg.attacks.metrics import LOW_RATES, Roc
from fedlsg.owner_only import make_parents
from simulations.attack.membership.findings import Report, bounded, facts, granted, tables, verdict
from simulations.attack.membership.measure import GRID, over_the_claim
from simulations.report.chart import GUESSING, Axis, Chart, Series
from simulations.report.colours import BLACK, GREEN, GREY, ORANGE, SKY
from simulations.report.figure import interactive
from simulations.report.page import Badge, Page, Text, data_section, download, facts_of, json_text, sections
from simulations.report.template import render
from simulations.rundir.files.atomic import write_atomically, writing_to

COLOURS = {"loss threshold": ORANGE, "LiRA offline": SKY, "LiRA online": GREEN}
LIMITS = "An attack that fails proves nothing: a stronger one may exist."
CAPTION = (
    "How many members an attack finds (true positive rate) for each share of non-members that it wrongly calls members "
    "(false positive rate). Both axes are logarithmic; each model is the target in turn. Further up is a stronger "
    "attack, and the dotted line is guessing. Rates left of the first point cannot be measured with so few non-members."
)
DASHED = "Dashed lines are what the claim allows any attacker."


def write(folder: Path, report: Report, lead: str) -> None:
    """membership.json and membership.html, each replaced whole."""
    data = json_text(numbers(report))
    with writing_to(folder):
        make_parents(folder, private=True)
        write_atomically(folder / "membership.json", data, private=True)
        write_atomically(folder / "membership.html", page(report, lead, data).encode(), private=True)


def page(report: Report, lead: str, data: bytes) -> str:
    """membership.html: one file that requests nothing. It shows no example. ``data``: the bytes of membership.json."""
    caption = f"{CAPTION} {DASHED}" if report.limits else CAPTION
    limits = f"{LIMITS} {bounded(report)}" if report.limits else LIMITS
    return render(
        Page(
            kind="fedlsg attack --membership",
            title="Who was in the training set",
            lead=lead,
            headline=verdict(report),
            badge=outcome(report),
            sections=sections(
                ("", [facts_of(facts(report)), interactive(curves(report), caption)]),
                *((table.title, [replace(table, title="")]) for table in tables(report)),
                ("What the attacker is granted", [facts_of(granted(report)), Text(words=limits, style="note")]),
                data_section(download("membership.json", data, "all numbers of this page")),
            ),
        )
    )


def outcome(report: Report) -> tuple[str, Badge]:
    """In a few words, whether members were found."""
    found = [one.in_turn for one in report.found]
    if over_the_claim(report.found, report.limits) or any(one.tpr[LOW_RATES[0]].low > LOW_RATES[0] for one in found):
        return "an attack found members", "bad"
    if any(one.auc.low > 0.5 for one in found):
        return f"better than guessing, but not at {100 * LOW_RATES[0]:g} % false alarms", "limited"
    return "no attack succeeded", "good"


def curves(report: Report) -> tuple[Chart, ...]:
    """The ROC curves, logarithmic on both axes."""
    start = float(GRID[np.isfinite(report.found[0].curve)].min(initial=1.0))
    rates = GRID[start <= GRID]
    across = (100 * rates).tolist()
    series = [
        Series(
            name=one.attack,
            x=(100 * GRID).tolist(),
            y=np.where(one.curve > 0, 100 * one.curve, np.nan).tolist(),
            colour=COLOURS[one.attack],
        )
        for one in report.found
    ]
    for limit, dashes in zip(report.limits, ("--", "-."), strict=False):
        bound = [100 * limit.bound(float(rate)) for rate in rates]
        series.append(Series(name=limit.name, x=across, y=bound, colour=BLACK, dashes=dashes))
    series.append(Series(name=GUESSING, x=across, y=across, colour=GREY, dashes=":"))
    axis = Axis(log=True, unit="%", low=100 * start)
    x = replace(axis, label="false positive rate: non-members called members", high=100.0)
    y = replace(axis, label="true positive rate: members found", high=130.0)
    return (Chart(title="Members found", x=x, y=y, series=tuple(series), height=420),)


def numbers(report: Report) -> dict[str, Any]:
    """Everything of membership.json."""
    s, models = report.settings, report.models
    return {
        "workload": s.workload,
        "model": s.model,
        "method": s.method,
        "trust": s.trust,
        "unit": s.unit,
        "public_seed": s.seed,
        "seed": report.seed,
        "shadows": len(models.inside) - 1,
        "candidates": len(models.rows),
        "members_of_target": int(models.inside[0].sum()),
        "test_accuracy": None if models.accuracy is None else list(models.accuracy),
        "claim": None if report.claim is None else asdict(report.claim),
        "attacks": {
            one.attack: {
                "right_answers": asdict(one.success),
                "target": _roc(one.target),
                "in_turn": _roc(one.in_turn),
                "curve": [[x, y] for x, y in zip(GRID.tolist(), one.curve.tolist(), strict=True) if y == y],
            }
            for one in report.found
        },
        "guessing": {"right_answers": 0.5, "auc": 0.5, "tpr": {f"{rate:g}": rate for rate in LOW_RATES}},
        "bounds": {
            one.name: {"auc": one.auc, "tpr": {f"{rate:g}": one.bound(rate) for rate in LOW_RATES}}
            for one in report.limits
        },
        "own_model_loss_threshold": None
        if report.own is None
        else {"right_answers": asdict(report.own.success), "examples": report.own.examples, **_roc(report.own.roc)},
        "one_round": [asdict(one) for one in report.rounds],
        "granted": granted(report),
        "verdict": verdict(report),
        "seconds": round(report.seconds, 1),
    }


def _roc(found: Roc) -> dict[str, Any]:
    return {"auc": asdict(found.auc), "tpr": {f"{rate:g}": asdict(tpr) for rate, tpr in found.tpr.items()}}
