"""``fedlsg attack --membership``: was this example in the training set?

Trains shadow models of a run's settings. Writes membership.json and membership.html: rates next to
guessing and to what the claim allows, and assumptions.

    shadows              the models
    measure              attacks on them
    own_model            attacks on a run and its payloads
    membership_findings  tables and verdict
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fedlsg.attacks.roc import LOW_RATES, Roc
from fedlsg.config.units import unit_named
from fedlsg.simulations.attacks.attack_page import output_folder
from fedlsg.simulations.attacks.membership.measure import (
    GRID,
    attack,
    claimed,
)
from fedlsg.simulations.attacks.membership.membership_findings import (
    Report,
    at_guessing,
    badge_of,
    bounded,
    facts,
    granted,
    on_run,
    strongest,
    tables,
    verdict,
)
from fedlsg.simulations.attacks.membership.own_model import own_attacks, scores_on_run
from fedlsg.simulations.attacks.membership.shadows import check_shadows, train_all
from fedlsg.simulations.attacks.observations import TWO_QUESTIONS
from fedlsg.simulations.attacks.question import KEY, Question, file_stem, words_of_each
from fedlsg.simulations.inspection import refuse_settings
from fedlsg.simulations.planning.earlier_runs.continuity import check_own_code
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.report.drawing.chart import GUESSING, Axis, Chart, Series
from fedlsg.simulations.report.drawing.colours import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PLUM,
    RED,
    SKY,
    VIOLET,
)
from fedlsg.simulations.report.pages.figure import interactive
from fedlsg.simulations.report.pages.page import (
    Download,
    Page,
    Text,
    data_section,
    download,
    facts_of,
    json_text,
    sections,
)
from fedlsg.simulations.report.pages.template import render
from fedlsg.simulations.report.terminals.progress import bar
from fedlsg.simulations.report.terminals.terminal import (
    checked,
    facts_shown,
    print_line,
    print_note,
    print_table,
    print_written,
    write_private,
)
from fedlsg.simulations.report.words import duration
from fedlsg.simulations.server.ready import ready_plan
from fedlsg.simulations.settings.any_run import Device
from fedlsg.simulations.settings.rule_checker import refuse_groups, refuse_shuffled
from fedlsg.simulations.settings.settings import Settings, words_given
from fedlsg.simulations.settings.with_preset import resolve
from fedlsg.simulations.storage.examined import STATE
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads.base import split
from fedlsg.simulations.workloads.base.split import Chance

SHADOWS = 16
USED = frozenset(
    {
        "runs",
        "membership",
        "shadows",
        "workload",
        "method",
        "epsilon",
        "noise_multiplier",
        "seed",
        "device",
        "out",
        "config",
    }
)
"""Options of ``fedlsg attack`` that --membership reads."""


def membership_command(
    run: str | None,
    given: Mapping[str, Any],
    console: Console,
    *,
    shadows: int | None,
    seed: int,
    device: Device = "auto",
    out: str | None,
) -> None:
    """Train on ``device``, attack, print; write membership.json and membership.html, or
    membership-2 and so on next to pages of other questions.

    Raises ValueError for a wrong option, settings next to a run, or settings that cannot train on
    half of the data.
    """
    refuse_settings(run, given)
    shadows = SHADOWS if shadows is None else shadows
    check_shadows(shadows)
    folder = output_folder([] if run is None else [run], out)
    began = time.monotonic()
    wanted = resolve(given) if run is None else checked(run, STATE, console).read_config()
    refuse_shuffled(wanted, "--membership")
    refuse_groups(wanted, "--membership")
    with console.status("loading data, calibrating noise") as status:
        plan = ready_plan(
            as_shadow(wanted, device), progress=status.update, given=words_given(given)
        )
        claim = claimed(plan)
        if run is not None:
            check_own_code(plan, RunDir.open(run))
    rounds = plan.schedule.rounds
    print_line(
        f"training {shadows + 1} models of {rounds} rounds each: the target and {shadows} shadows",
        console,
    )
    with bar(console, "training") as tick:
        models = train_all(plan, shadows=shadows, seed=seed, tick=tick)
    with console.status("attacking"):
        own = {} if run is None else scores_on_run(run, plan, seed)
        successes = attack(models, seed=seed, more=len(own))
        report = Report(
            settings=plan.settings,
            models=models,
            found=successes,
            claim=None if claim is None else claim[0],
            limits=() if claim is None else claim[1],
            own=own_attacks(own, attacks=len(successes) + len(own), seed=seed),
            seed=seed,
            seconds=time.monotonic() - began,
            test_examples=len(plan.workload.test),
            chance=chance_of(plan),
        )
        others = [] if run is None or output_folder([run], None) == folder else [run]
        question = {"runs": others, "shadows": shadows, "seed": seed, "given": words_of_each(given)}
        files = write(folder, report, lead(report, run), question)
    show(report, console)
    print_written(folder, files, console)


def chance_of(plan: Plan) -> Chance | None:
    """The accuracy of guessing on the test split; None without classes."""
    classes = plan.workload.num_classes
    return None if classes is None else split.chance_of(plan.workload.tests, classes)


def only(runs: Sequence[str], given: Collection[str]) -> str | None:
    """The only run, or None. Raises ValueError for several, and for options that --membership does
    not use.
    """
    unused = sorted(set(given) - USED)
    if unused:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise ValueError(
            f"--membership trains models and attacks no recorded update: leave out {names}"
        )
    if len(runs) > 1:
        raise ValueError(
            f"--membership attacks one run at a time, got {len(runs)}: {', '.join(runs)}"
        )
    return runs[0] if runs else None


def as_shadow(wanted: Settings, device: Device = "auto") -> Settings:
    """The settings of shadow models: nothing recorded, evaluated at the end only, reproducible
    noise.
    """
    wanted = replace(wanted, engine="local", device=device, record_updates=False)
    return replace(wanted, reproducible=True, evaluate_every=10**6, run_dir=None)


def lead(report: Report, run: str | None) -> str:
    """One line: run, date, shadows, seed, time."""
    s = report.settings
    subject = (
        f"{s.workload}, {s.method}"
        if run is None
        else f"{Path(run).resolve().name} ({s.workload}, {s.method})"
    )
    minutes = duration(report.seconds)
    return (
        f"{subject}; {time.strftime('%Y-%m-%d')}; {len(report.models.inside) - 1} shadows, seed "
        f"{report.seed}; {minutes}"
    )


def show(report: Report, console: Console) -> None:
    """The tables, the verdict last."""
    for table in tables(report):
        print_table(table, console)
    print_note("what the attacker is granted", console)
    for name, text in granted(report).items():
        print_line(f"{name}: {text}", console, "dim")
    console.print(facts_shown(facts(report)), highlight=False)
    print_line(verdict(report), console, "bold")
    if (empty := at_guessing(report)) is not None:
        print_line(empty, console, "yellow")


COLOURS = (ORANGE, SKY, GREEN, VIOLET, RED, PLUM, BLUE)
LIMITS = "An attack that fails proves nothing: a stronger one may exist."
CAPTION = (
    "How many members an attack finds (true positive rate) for each share of non-members that it "
    "wrongly calls members (false positive rate). Both axes are logarithmic; each model is the "
    "target in turn. Further up is a stronger attack, and the dotted line is guessing. The band of "
    "the strongest attack has its intervals; diamonds are the best attack on the run itself. Rates "
    "left of the first point cannot be measured with so few non-members."
)
DASHED = "Dashed lines are what the claim allows any attacker."


def write(folder: Path, report: Report, lead: str, question: Question) -> list[str]:
    """membership.json and membership.html, each replaced whole; ``question``: see ``file_stem``.
    Returns their names.
    """
    stem = file_stem(folder, "membership", question)
    data = json_text({KEY: dict(question), **numbers(report)})
    saved = download(f"{stem}.json", data, "all numbers of this page")
    files = {f"{stem}.html": page(report, lead, saved).encode(), f"{stem}.json": data}
    write_private(folder, files)
    return list(files)


def page(report: Report, lead: str, saved: Download) -> str:
    """membership.html: one file that requests nothing. It shows no example. ``saved``:
    membership.json.
    """
    caption = f"{CAPTION} {DASHED}" if report.limits else CAPTION
    limits = f"{LIMITS} {bounded(report)}" if report.limits else LIMITS
    return render(
        Page(
            kind="fedlsg attack --membership",
            title="Who was in the training set",
            lead=lead,
            headline=verdict(report),
            badge=badge_of(report),
            cautions=() if (empty := at_guessing(report)) is None else (empty,),
            sections=sections(
                ("Members found", [interactive(curves(report), caption)]),
                *((table.title, [replace(table, title="")]) for table in tables(report)),
                ("What was attacked", [facts_of(facts(report))]),
                (
                    "What the attacker is granted",
                    [
                        facts_of(granted(report)),
                        *(
                            []
                            if unit_named(report.settings.unit).whole
                            else [Text(words=TWO_QUESTIONS, style="note")]
                        ),
                        Text(words=limits, style="note"),
                    ],
                ),
                data_section(saved),
            ),
        )
    )


def curves(report: Report) -> tuple[Chart, ...]:
    """The ROC curves, logarithmic on both axes, and the band of the strongest attack."""
    start = float(GRID[np.isfinite(report.found[0].curve)].min(initial=1.0))
    rates = GRID[start <= GRID]
    across = (100 * rates).tolist()
    series, best = [], strongest({found.attack: found.in_turn for found in report.found})
    for place, found in enumerate(report.found):
        line = Series(
            name=found.attack,
            x=(100 * GRID).tolist(),
            y=_shown(found.curve),
            colour=COLOURS[place % len(COLOURS)],
            dashes="-" if place < len(COLOURS) else "--",
        )
        series.append(line)
        if found.attack == best:
            low = np.maximum(found.band[0], found.curve / 100)  # zero has no logarithm
            high = _shown(found.band[1])
            series.append(replace(line, kind="band", dashes="-", low=_shown(low), high=high))
    if report.own:
        own = strongest({name: outcome.roc for name, outcome in report.own.items()})
        tpr = report.own[own].roc.tpr
        # zero has no logarithm, and a bar without an end would not be drawn
        low = [max(rate.low, rate.value / 100) for rate in tpr.values()]
        series.append(
            Series(
                name=on_run(own),
                x=[100 * rate for rate in tpr],
                y=_shown(np.array([rate.value for rate in tpr.values()])),
                colour=BLACK,
                marker="D",
                line=False,
                low=_shown(np.array(low)),
                high=_shown(np.array([rate.high for rate in tpr.values()])),
            )
        )
    for limit, dashes in zip(report.limits, ("--", "-."), strict=False):
        bound = [100 * limit.bound(float(rate)) for rate in rates]
        series.append(Series(name=limit.name, x=across, y=bound, colour=BLACK, dashes=dashes))
    series.append(Series(name=GUESSING, x=across, y=across, colour=GREY, dashes=":"))
    axis = Axis(log=True, unit="%", low=100 * start)
    x = replace(axis, label="false positive rate: non-members called members, %", high=100.0)
    y = replace(axis, label="true positive rate: members found, %", high=130.0)
    return (
        Chart(
            title="Members found for the false alarms", x=x, y=y, series=tuple(series), height=420
        ),
    )


def _shown(rates: np.ndarray) -> list[float]:
    """In percent; NaN where a logarithmic axis has no place."""
    return np.where(rates > 0, 100 * rates, np.nan).tolist()  # type: ignore[no-any-return]


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
                "curve": [
                    point
                    for point in np.stack([GRID, one.curve, *one.band], 1).tolist()
                    if point[1] == point[1]
                ],
            }
            for one in report.found
        },
        "guessing": {
            "right_answers": 0.5,
            "auc": 0.5,
            "tpr": {f"{rate:g}": rate for rate in LOW_RATES},
        },
        "bounds": {
            one.name: {"auc": one.auc, "tpr": {f"{rate:g}": one.bound(rate) for rate in LOW_RATES}}
            for one in report.limits
        },
        "own_run": {
            name: {
                "right_answers": asdict(one.success),
                "members": one.members,
                "others": one.others,
                **_roc(one.roc),
            }
            for name, one in report.own.items()
        },
        "granted": granted(report),
        "verdict": verdict(report),
        "seconds": round(report.seconds, 1),
    }


def _roc(found: Roc) -> dict[str, Any]:
    return {
        "auc": asdict(found.auc),
        "tpr": {f"{rate:g}": asdict(tpr) for rate, tpr in found.tpr.items()},
    }
