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
from fedlsg.simulations.attacks.membership.measure import GRID, Found, attack, claimed
from fedlsg.simulations.attacks.membership.membership_findings import (
    Report,
    at_guessing,
    badge_of,
    bounded,
    facts,
    granted,
    name_on_run,
    strongest,
    tables,
    verdict,
)
from fedlsg.simulations.attacks.membership.own_model import own_attacks, scores_on_run
from fedlsg.simulations.attacks.membership.shadows import check_shadows, train_all
from fedlsg.simulations.attacks.privacy_facts import TWO_QUESTIONS
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
    Part,
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

DEFAULT_SHADOWS = 16
READ_OPTIONS = frozenset(
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
"""Options of ``fedlsg attack`` that --membership reads; it refuses the others."""


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
    """Train shadow models, attack, print, and write membership.json and membership.html.

    run: the directory of a run; None: ``given`` are settings.
    shadows: their number; None: ``DEFAULT_SHADOWS``.
    seed: repeats all draws and the noise.
    device: on which models are trained.
    out: the folder of the files; None: see ``output_folder``.

    Raises ValueError for a wrong option, settings next to a run, or settings that cannot train on
    half of the data.
    """
    refuse_settings(run, given)
    shadows = DEFAULT_SHADOWS if shadows is None else shadows
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
        own_scores = {} if run is None else scores_on_run(run, plan, seed)
        results = attack(models, seed=seed, more=len(own_scores))
        report = Report(
            settings=plan.settings,
            models=models,
            found=results,
            claim=None if claim is None else claim[0],
            limits=() if claim is None else claim[1],
            own=own_attacks(own_scores, attacks=len(results) + len(own_scores), seed=seed),
            seed=seed,
            seconds=time.monotonic() - began,
            test_examples=len(plan.workload.test),
            chance=chance_of(plan),
        )
        # a run whose page is in its own directory is not named: a directory may move
        named = [] if run is None or output_folder([run], None) == folder else [run]
        question = {"runs": named, "shadows": shadows, "seed": seed, "given": words_of_each(given)}
        files = write(folder, report, lead(report, run), question)
    show(report, console)
    print_written(folder, files, console)


def chance_of(plan: Plan) -> Chance | None:
    """The accuracy of guessing on the test split; None without classes."""
    classes = plan.workload.num_classes
    return None if classes is None else split.chance_of(plan.workload.tests, classes)


def only_run(runs: Sequence[str], given: Collection[str]) -> str | None:
    """The only run; None without a run.

    Raises ValueError for several runs, and for options that --membership does not read.
    """
    unused = sorted(set(given) - READ_OPTIONS)
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
    """The settings of shadow models: no record, evaluation at the end only, reproducible noise."""
    wanted = replace(wanted, engine="local", device=device, record_updates=False)
    return replace(wanted, reproducible=True, evaluate_every=10**6, run_dir=None)


def lead(report: Report, run: str | None) -> str:
    """The first line of the page: run, date, shadows, seed, time."""
    subject = f"{report.settings.workload}, {report.settings.method}"
    if run is not None:
        subject = f"{Path(run).resolve().name} ({subject})"
    return (
        f"{subject}; {time.strftime('%Y-%m-%d')}; {len(report.models.inside) - 1} shadows, seed "
        f"{report.seed}; {duration(report.seconds)}"
    )


def show(report: Report, console: Console) -> None:
    """Print the tables, the assumptions, the facts and the verdict."""
    for table in tables(report):
        print_table(table, console)
    print_note("what the attacker is granted", console)
    for name, text in granted(report).items():
        print_line(f"{name}: {text}", console, "dim")
    console.print(facts_shown(facts(report)), highlight=False)
    print_line(verdict(report), console, "bold")
    if (warning := at_guessing(report)) is not None:
        print_line(warning, console, "yellow")


CURVE_COLOURS = (ORANGE, SKY, GREEN, VIOLET, RED, PLUM, BLUE)
LIMITS = "An attack that fails proves nothing: a stronger one may exist."
CURVES_CAPTION = (
    "How many members an attack finds (true positive rate) for each share of non-members that it "
    "wrongly calls members (false positive rate). Both axes are logarithmic; each model is the "
    "target in turn. Further up is a stronger attack, and the dotted line is guessing. The band of "
    "the strongest attack has its intervals; diamonds are the best attack on the run itself. Rates "
    "left of the first point cannot be measured with so few non-members."
)
DASHED = "Dashed lines are what the claim allows any attacker."


def write(folder: Path, report: Report, lead: str, question: Question) -> list[str]:
    """Write membership.json and membership.html, each replaced whole; return their names.

    lead: the first line of the page.
    question: see ``file_stem``.
    """
    stem = file_stem(folder, "membership", question)
    data = json_text({KEY: dict(question), **numbers(report)})
    saved = download(f"{stem}.json", data, "all numbers of this page")
    files = {f"{stem}.html": page(report, lead, saved).encode(), f"{stem}.json": data}
    write_private(folder, files)
    return list(files)


def page(report: Report, lead: str, saved: Download) -> str:
    """The page, as one file that loads nothing from elsewhere. It shows no example.

    lead: the first line.
    saved: membership.json.
    """
    warning = at_guessing(report)
    caption, limits = CURVES_CAPTION, LIMITS
    if report.limits:
        caption, limits = f"{CURVES_CAPTION} {DASHED}", f"{LIMITS} {bounded(report)}"
    assumptions: list[Part] = [facts_of(granted(report))]
    if not unit_named(report.settings.unit).whole:
        assumptions.append(Text(words=TWO_QUESTIONS, style="note"))
    assumptions.append(Text(words=limits, style="note"))
    return render(
        Page(
            kind="fedlsg attack --membership",
            title="Who was in the training set",
            lead=lead,
            headline=verdict(report),
            badge=badge_of(report),
            cautions=() if warning is None else (warning,),
            sections=sections(
                ("Members found", [interactive(curves(report), caption)]),
                *((table.title, [replace(table, title="")]) for table in tables(report)),
                ("What was attacked", [facts_of(facts(report))]),
                ("What the attacker is granted", assumptions),
                data_section(saved),
            ),
        )
    )


def curves(report: Report) -> tuple[Chart, ...]:
    """The chart of the ROC curves, logarithmic on both axes.

    It has every attack, the band of the strongest, the best attack on the run itself, and what the
    claim allows, from the smallest rate that can be measured.
    """
    start = float(GRID[np.isfinite(report.found[0].curve)].min(initial=1.0))
    rates = GRID[start <= GRID]
    x_percent = (100 * rates).tolist()
    series = attack_series(report)
    if report.own:
        series.append(own_series(report))
    for limit, dashes in zip(report.limits, ("--", "-."), strict=False):
        bound = [100 * limit.bound(float(rate)) for rate in rates]
        series.append(Series(name=limit.name, x=x_percent, y=bound, colour=BLACK, dashes=dashes))
    series.append(Series(name=GUESSING, x=x_percent, y=x_percent, colour=GREY, dashes=":"))
    axis = Axis(log=True, unit="%", low=100 * start)
    x = replace(axis, label="false positive rate: non-members called members, %", high=100.0)
    y = replace(axis, label="true positive rate: members found, %", high=130.0)
    return (
        Chart(
            title="Members found for the false alarms", x=x, y=y, series=tuple(series), height=420
        ),
    )


def attack_series(report: Report) -> list[Series]:
    """The curve of each attack, and the band of the strongest."""
    series = []
    best = strongest({result.attack: result.in_turn for result in report.found})
    for index, result in enumerate(report.found):
        line = Series(
            name=result.attack,
            x=(100 * GRID).tolist(),
            y=in_percent(result.curve),
            colour=CURVE_COLOURS[index % len(CURVE_COLOURS)],
            dashes="-" if index < len(CURVE_COLOURS) else "--",
        )
        series.append(line)
        if result.attack == best:
            low = drawable(result.band[0], result.curve)
            high = in_percent(result.band[1])
            series.append(replace(line, kind="band", dashes="-", low=in_percent(low), high=high))
    return series


def own_series(report: Report) -> Series:
    """The rates of the best attack on the run itself."""
    name = strongest({name: outcome.roc for name, outcome in report.own.items()})
    tpr = report.own[name].roc.tpr
    values, lows, highs = (
        np.array([getattr(rate, end) for rate in tpr.values()]) for end in ("value", "low", "high")
    )
    return Series(
        name=name_on_run(name),
        x=[100 * rate for rate in tpr],
        y=in_percent(values),
        colour=BLACK,
        marker="D",
        line=False,
        low=in_percent(drawable(lows, values)),
        high=in_percent(highs),
    )


def drawable(lows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Lower ends for a logarithmic axis, where zero has no place: at least 1 % of the value."""
    return np.maximum(lows, values / 100)  # type: ignore[no-any-return]


def in_percent(rates: np.ndarray) -> list[float]:
    """Rates in percent; NaN for zero, which has no place on a logarithmic axis."""
    return np.where(rates > 0, 100 * rates, np.nan).tolist()  # type: ignore[no-any-return]


def numbers(report: Report) -> dict[str, Any]:
    """The content of membership.json."""
    settings, models = report.settings, report.models
    return {
        "workload": settings.workload,
        "model": settings.model,
        "method": settings.method,
        "trust": settings.trust,
        "unit": settings.unit,
        "public_seed": settings.seed,
        "seed": report.seed,
        "shadows": len(models.inside) - 1,
        "candidates": len(models.rows),
        "members_of_target": int(models.inside[0].sum()),
        "test_accuracy": None if models.accuracy is None else list(models.accuracy),
        "claim": None if report.claim is None else asdict(report.claim),
        "attacks": {
            result.attack: {
                "right_answers": asdict(result.success),
                "target": roc_numbers(result.target),
                "in_turn": roc_numbers(result.in_turn),
                "curve": curve_numbers(result),
            }
            for result in report.found
        },
        "guessing": {
            "right_answers": 0.5,
            "auc": 0.5,
            "tpr": {f"{rate:g}": rate for rate in LOW_RATES},
        },
        "bounds": {
            limit.name: {
                "auc": limit.auc,
                "tpr": {f"{rate:g}": limit.bound(rate) for rate in LOW_RATES},
            }
            for limit in report.limits
        },
        "own_run": {
            name: {
                "right_answers": asdict(outcome.success),
                "members": outcome.members,
                "others": outcome.others,
                **roc_numbers(outcome.roc),
            }
            for name, outcome in report.own.items()
        },
        "granted": granted(report),
        "verdict": verdict(report),
        "seconds": round(report.seconds, 1),
    }


def roc_numbers(curve: Roc) -> dict[str, Any]:
    """AUC and rates with their intervals."""
    return {
        "auc": asdict(curve.auc),
        "tpr": {f"{rate:g}": asdict(tpr) for rate, tpr in curve.tpr.items()},
    }


def curve_numbers(result: Found) -> list[list[float]]:
    """FPR, TPR and the ends of its interval at each measurable rate of ``GRID``."""
    points = np.stack([GRID, result.curve, *result.band], 1)
    return points[np.isfinite(result.curve)].tolist()  # type: ignore[no-any-return]
