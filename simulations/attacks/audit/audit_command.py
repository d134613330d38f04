"""The command ``fedlsg audit`` and its page: is a claimed epsilon wrong?

The audit plants canaries and looks for them in the outputs (``unit`` mode: chosen gradients through
the mechanism; ``training`` mode: in a training run). It can end in "falsified", and never in
"verified".
"""

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from fedlsg.attacks.audit.checks.all_checks import check_recording
from fedlsg.attacks.audit.checks.check import Check
from fedlsg.attacks.audit.played.coverage import not_covered
from fedlsg.attacks.audit.played.plants import PLANTS, planted, refuse_plant
from fedlsg.attacks.audit.played.sample_sizes import enough_canaries
from fedlsg.attacks.audit.played.unit_mode import record, ticks
from fedlsg.attacks.audit.verdict import SIGNIFICANCE, Verdict, as_dict, judge
from fedlsg.simulations.attacks.audit.audited import (
    Audited,
    audited_run,
    audited_settings,
    circumstances,
)
from fedlsg.simulations.attacks.audit.training import KINDS, audit_training
from fedlsg.simulations.attacks.question import KEY, file_stem, words_of_each
from fedlsg.simulations.inspection import refuse_settings
from fedlsg.simulations.report.drawing.chart import Axis, Chart, Series, level
from fedlsg.simulations.report.drawing.colours import BLACK, BLUE, GREEN, RED
from fedlsg.simulations.report.pages.figure import interactive
from fedlsg.simulations.report.pages.page import (
    Badge,
    Page,
    Row,
    RowKind,
    Table,
    Text,
    Tile,
    Tiles,
    data_section,
    download,
    facts_of,
    json_text,
    sections,
)
from fedlsg.simulations.report.pages.table import Column, make_table
from fedlsg.simulations.report.pages.template import render
from fedlsg.simulations.report.terminals.progress import count_bar
from fedlsg.simulations.report.terminals.terminal import (
    checked,
    print_line,
    print_table,
    print_written,
    write_private,
)
from fedlsg.simulations.report.words import epsilon_words
from fedlsg.simulations.settings.any_run import Device
from fedlsg.simulations.storage.atomic_files import check_writable
from fedlsg.simulations.storage.examined import STATE

MODES = ("unit", "training")
EXIT_FALSIFIED = 1
"""Exit status of an audit that refutes the claim."""
PLANTED = "planted: {}. The mechanism that runs is not the claimed one; the audit does not know it."
"""The warning about a mistake that was made on purpose."""


def audit_command(
    run: str | None,
    given: Mapping[str, Any],
    console: Console,
    *,
    mode: str = "unit",
    canaries: int | None = None,
    canary_kind: str | None = None,
    plant: str | None = None,
    seed: int | None = None,
    out: str | None = None,
    device: Device = "auto",
) -> int:
    """Audit, print and write a page. Returns the exit status: EXIT_FALSIFIED, or 0.

    run: the directory of a run; None: ``given`` are settings.
    mode: "unit" or "training".
    canaries: their number; None: enough for the mode.
    canary_kind: for the training mode.
    plant: a mistake that is made on purpose, to see whether the audit finds it.
    seed: repeats an audit with all of its draws; None: secret draws.
    out: the file of the results, or a folder, as in ``results_place``. In a folder the files are
        audit.json and audit.html, or audit-2 and so on next to audits of other questions.
    Raises ValueError for settings next to a run, an unknown mode, plant or kind of canary, or a
    mechanism that claims no epsilon.
    """
    check_options(run, given, mode=mode, plant=plant, canary_kind=canary_kind)
    folder, name = results_place(run, out)
    began = time.monotonic()
    if run is not None:
        checked(run, STATE, console)
    with console.status("loading data") as status:
        if run is None:
            audited = audited_settings({**given, "device": device}, progress=status.update)
        else:
            audited = audited_run(run, device=device)
    refuse_plant(plant, audited.setting)
    announce(audited, mode, plant, console)
    audit_mode = audit_training if mode == "training" else audit_unit
    verdict, count, kind, paths = audit_mode(
        audited, console, canaries=canaries, kind=canary_kind, plant=plant, seed=seed
    )
    report = as_dict(verdict) | circumstances(audited, mode, count, kind, seed=seed, plant=plant)
    report |= {"paths": dict(paths), "not_covered": list(not_covered(audited.setting, paths))}
    report["seconds"] = round(time.monotonic() - began, 1)
    report[KEY] = {
        "mode": mode,
        "canaries": canaries,
        "canary_kind": canary_kind,
        "plant": plant,
        "seed": seed,
        "given": words_of_each(given),
    }
    name = name or f"{file_stem(folder, 'audit', report[KEY])}.json"
    data = json_text(report, indent=2, not_finite=str)
    warnings = [] if audited.not_private is None else [audited.not_private]
    if plant is not None:
        warnings.append(PLANTED.format(plant))
    table = figures(verdict, count, audited.not_private)
    report_page = page(verdict, table, report, data, name=name, warnings=tuple(warnings))
    html = Path(name).with_suffix(".html").name
    write_private(folder, {name: data, html: report_page.encode()})
    if report["not_covered"]:
        print_line(f"not covered: {', '.join(report['not_covered'])}", console, "yellow")
    show(verdict, count, audited.threat_model(mode), console, not_private=audited.not_private)
    print_written(folder, (name, html), console)
    return EXIT_FALSIFIED if verdict.falsified else 0


def check_options(
    run: str | None,
    given: Mapping[str, Any],
    *,
    mode: str,
    plant: str | None,
    canary_kind: str | None,
) -> None:
    """Raise ValueError for settings next to a run, or an unknown mode, plant or kind of canary."""
    refuse_settings(run, given)
    if mode not in MODES:
        raise ValueError(f"expected --mode in {', '.join(MODES)}, got {mode!r}")
    if plant is not None and plant not in PLANTS:
        raise ValueError(f"expected --plant in {', '.join(PLANTS)}, got {plant!r}")
    if canary_kind is not None and (mode != "training" or canary_kind not in KINDS):
        raise ValueError(
            f"expected --canary-kind in {', '.join(KINDS)}, with --mode training, got "
            f"{canary_kind!r}"
        )


def results_place(run: str | None, out: str | None) -> tuple[Path, str | None]:
    """The folder of the results, and the name of their file; None: a name that is free there.

    Without ``out`` the folder is that of the run, else this one. An ``out`` that is a folder, or
    has no suffix, is the folder; another one is the file.
    Raises ValueError for a folder that cannot be written to.
    """
    path = Path(out or run or ".").expanduser().resolve()
    folder, name = path, None
    if out is not None and path.suffix and not path.is_dir():
        folder, name = path.parent, path.name
    if folder.is_file():
        raise ValueError(f"{folder} is a file; give --out as a folder, or as a file NAME.json")
    check_writable(folder)
    return folder, name


def audit_unit(
    audited: Audited,
    console: Console,
    *,
    canaries: int | None,
    kind: str | None,
    plant: str | None,
    seed: int | None,
) -> tuple[Verdict, int, str, Counter[str]]:
    """Send canaries through the mechanism of real runs, and judge its outputs.

    Returns the verdict, the number and the kind of the canaries, and how often each path of the
    code ran. The plant is in the mechanism only, and the judge is not told. ``kind`` is for the
    training mode.
    """
    setting = audited.setting
    count = enough_canaries(setting) if canaries is None else canaries
    with (
        # rounds of the three phases (canaries, noise alone, repeated games) take unequal times
        count_bar(console, "rounds", ticks(setting, count, seed), even=False) as tick,
        planted(plant, clients=setting.stated.members),
    ):
        recording = record(setting, count, seed=seed, tick=tick)
    with console.status("computing bounds"):
        verdict = judge(
            recording.scores, recording.included, audited.claim, check_recording(recording, setting)
        )
    return verdict, count, "updates" if setting.stated.whole else "gradients", recording.paths


def announce(audited: Audited, mode: str, plant: str | None, console: Console) -> None:
    """Print the claim, and the mistake that is planted."""
    claim, settings = audited.claim, audited.subject.base.settings
    console.print(
        f"claim of {audited.source}: {settings.workload}, method {settings.method}, epsilon "
        f"{epsilon_words(claim.epsilon)} at delta {claim.delta:g} for {claim.steps} steps at q = "
        f"{claim.sample_rate:.4g}, trust={settings.trust}, unit={settings.unit}, which needs "
        f"sigma_eff {claim.noise_multiplier:.4g}; mode {mode}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if audited.not_private is not None:
        print_line(audited.not_private, console, "bold red")
    if plant is not None:
        print_line(PLANTED.format(plant), console, "yellow")


def show(
    verdict: Verdict,
    canaries: int,
    threat: str,
    console: Console,
    *,
    not_private: str | None = None,
) -> None:
    """Print the figures, the checks, the threat model, and the verdict last.

    ``not_private``: why the claim is void, if it is.
    """
    print_table(figures(verdict, canaries, not_private), console)
    for check in verdict.checks:
        style = "dim" if check.passed else "bold red"
        if check.powerless:
            style = "yellow"
        print_line(f"{check.outcome}  {check.name}: {check.says}", console, style)
    console.print(alarm_words(verdict), markup=False, highlight=False)
    console.print(f"threat model: {threat}", markup=False, highlight=False)
    if verdict.falsified:
        text = f"falsified by: {', '.join(verdict.reasons)}"
        print_line(text, console, "bold red")
    else:
        console.print("not falsified", style="bold", markup=False, highlight=False)


def alarm_words(verdict: Verdict) -> str:
    """The probability that correct code is accused, over all tests together, in a sentence."""
    return (
        f"both bounds and all {len(verdict.checks)} checks together accuse correct code with a "
        f"probability of at most {100 * verdict.alarm:.2g} %"
    )


def figures(verdict: Verdict, canaries: int, not_private: str | None) -> Table:
    """A table of the claimed epsilon, its lower bounds, and the estimate."""
    void = "" if not_private is None else f"; {not_private}"
    confidence = f"{100 * (1 - SIGNIFICANCE):g} %"
    rows = [
        (
            "claimed",
            epsilon_words(verdict.claim.epsilon),
            f"at delta {verdict.claim.delta:g}{void}",
        )
    ]
    for name, bound in (("one-run bound", verdict.one_run), ("f-DP one-run bound", verdict.f_dp)):
        evidence = (
            f"{bound.guesses.correct} of {bound.guesses.guesses} guesses right, {canaries} "
            f"canaries, {confidence} confidence"
        )
        rows.append((name, f">= {bound.epsilon:.3f}", evidence))
    mu, epsilon = verdict.estimate.mu, verdict.estimate.epsilon
    evidence = (
        f"mu {mu.value:.3f}, epsilon {epsilon.low:.3f} to {epsilon.high:.3f} at 95 %; an estimate, "
        "no bound"
    )
    rows.append(("GDP estimate", f"{epsilon.value:.3f}", evidence))
    return Table(
        columns=("figure", "epsilon", "evidence"),
        rows=tuple(Row(cells=cells) for cells in rows),
        left=(0, 2),
    )


MEANING_NOTE = (
    "An audit tries to prove the claimed epsilon wrong. It plants canaries, guesses from the "
    "outputs which of them took part, and computes how large epsilon must be at least for so many "
    "right guesses. A lower bound above the claim refutes it. A lower bound below the claim proves "
    "nothing: a better audit may exist."
)


CHART_CAPTION = (
    "The dashed line is the claim. Lower bounds right of it refute it; left of it they prove "
    "nothing. The estimate is what this audit's own attack reaches, and not the real epsilon."
)
NO_POWER_NOTE = (
    'A check says "no power" where its standard error is larger than what is claimed: it could '
    "hardly have failed. More canaries, more outputs or a larger sample rate give it some."
)


def headline(verdict: Verdict) -> str:
    """The verdict, the claim and the best lower bound."""
    claim, best = verdict.claim, _best(verdict)
    bound = f"the largest lower bound is {best:.3f}, at {100 * (1 - SIGNIFICANCE):g} % confidence"
    claimed = (
        f"the claim is epsilon {epsilon_words(claim.epsilon)} (delta {claim.delta:g}), and {bound}"
    )
    if verdict.falsified:
        return f"Falsified by {', '.join(verdict.reasons)}: {claimed}."
    return f"Not falsified: {claimed}. That does not verify the claim."


def page(
    verdict: Verdict,
    figures: Table,
    report: Mapping[str, Any],
    data: bytes,
    *,
    name: str,
    warnings: tuple[str, ...],
) -> str:
    """The page, as one file that loads nothing from elsewhere.

    figures: the table of claim, bounds and estimate.
    report: the content of audit.json.
    data: its bytes, which the page offers under ``name``.
    """
    claim = verdict.claim
    subject = {
        "claim of": report["claimed_by"],
        "workload": report["workload"],
        "method": report["method"],
        "epsilon": f"{epsilon_words(claim.epsilon)} at delta {claim.delta:g}",
        "steps": f"{claim.steps} at sample rate q = {claim.sample_rate:.4g}",
        "reader": f"{report['reader']} (trust={report['trust']}, unit={report['unit']})",
        "noise": f"sigma_eff {claim.noise_multiplier:.4g} is the least that the claim needs",
        "audit": f"mode {report['mode']}, {report['canaries']} canaries ({report['canary_kind']})",
        "time": f"{report['seconds']} s",
    }
    meaning = Text(words=MEANING_NOTE, style="note")
    return render(
        Page(
            kind="fedlsg audit",
            title="Is the claimed epsilon wrong?",
            lead=f"{report['workload']} with {report['method']}; claim of {report['claimed_by']}.",
            headline=headline(verdict),
            badge=("falsified", "bad") if verdict.falsified else ("passed: not falsified", "good"),
            warnings=warnings,
            sections=sections(
                ("", [_tiles(verdict, report["reader"])]),
                (
                    "Claim, bounds and estimate",
                    [interactive([chart(verdict)], CHART_CAPTION, columns=1), figures, meaning],
                ),
                ("Checks", [_checks(verdict), *_notes(verdict)]),
                ("Which code ran", [_paths(report), Text(words=PATHS_NOTE, style="note")]),
                ("What was audited", [facts_of(subject)]),
                ("What the auditor knows and sees", [Text(words=report["threat_model"])]),
                data_section(download(name, data, "all numbers of this page")),
            ),
        )
    )


def _notes(verdict: Verdict) -> list[Text]:
    """Notes on the table of checks."""
    notes = [Text(words=alarm_words(verdict), style="note")]
    if any(check.powerless for check in verdict.checks):
        notes.append(Text(words=NO_POWER_NOTE, style="note"))
    return notes


def _tiles(verdict: Verdict, reader: str) -> Tiles:
    """The claim, the best bound, the estimate, and how many checks passed."""
    claim, best, estimate = verdict.claim, _best(verdict), verdict.estimate.epsilon
    checks = verdict.checks
    powerless = sum(check.powerless for check in checks)
    passed = sum(check.outcome == "passed" for check in checks)
    powerless_words = f"; {powerless} had no power here" if powerless else ""
    checks_style: Badge = "limited" if powerless else "good"
    if not all(check.passed for check in checks):
        checks_style = "bad"
    refuted = verdict.one_run.refutes or verdict.f_dp.refutes
    comparison = "above the claim: refuted" if refuted else "does not refute the claim"
    return Tiles(
        tiles=(
            Tile(
                name="claimed epsilon",
                value=epsilon_words(claim.epsilon),
                note=f"at delta {claim.delta:g}; {reader}",
            ),
            Tile(
                name="measured: at least",
                value=f"{best:.3f}",
                note=comparison,
                style="bad" if refuted else "good",
            ),
            Tile(
                name="this audit's attack reaches",
                value=f"{estimate.value:.3f}",
                note=f"{estimate.low:.3f} to {estimate.high:.3f} at 95 %. It is NOT the real "
                "epsilon: a better attack reaches more",
            ),
            Tile(
                name="checks passed",
                value=f"{passed} of {len(checks)}",
                note=f"of the mechanism's outputs{powerless_words}",
                style=checks_style,
            ),
        )
    )


def chart(verdict: Verdict) -> Chart:
    """The claim as a vertical line; each lower bound and the estimate in a row of its own."""
    epsilon = verdict.estimate.epsilon
    bounds = [("one-run bound", verdict.one_run), ("f-DP one-run bound", verdict.f_dp)]
    series = [
        Series(
            name="lower bound, refutes the claim" if bound.refutes else "lower bound",
            x=(bound.epsilon,),
            y=(float(row),),
            colour=RED if bound.refutes else GREEN,
            marker=">",
            line=False,
            words=("at least",),
        )
        for row, (_, bound) in enumerate(bounds)
    ]
    estimate = Series(
        name="estimate, 95 % interval",
        x=(epsilon.value,),
        y=(2.0,),
        left=(epsilon.low,),
        right=(epsilon.high,),
        colour=BLUE,
        marker="o",
        line=False,
        filled=False,
    )
    claim = level(verdict.claim.epsilon, "claimed epsilon", BLACK, upright=True)
    y = Axis(
        ticks=(
            *((float(row), name) for row, (name, _) in enumerate(bounds)),
            (2.0, "GDP estimate"),
        ),
        low=-0.6,
        high=2.6,
        down=True,
    )
    x = Axis(label="epsilon", low=0.0)
    return Chart(
        title="Claim and measurements on one axis",
        x=x,
        y=y,
        series=(claim, *series, estimate),
        height=230,
    )


def _best(verdict: Verdict) -> float:
    """The largest lower bound."""
    return max(verdict.one_run.epsilon, verdict.f_dp.epsilon)


PATHS_NOTE = (
    "Calls are counted in every eighth output. A path that these settings can take and the audit "
    "did not is not covered: a mistake in it would not be found."
)
NOT_COVERED = "not covered"
"""In place of the number of calls."""


def _paths(report: Mapping[str, Any]) -> Table:
    """A table with a row for each path that ran, and for each that a run may take instead."""
    calls = {name: f"{number:,}" for name, number in report["paths"].items()}
    calls |= dict.fromkeys(report["not_covered"], NOT_COVERED)
    columns = [Column("path", lambda row: row[0], left=True), Column("calls", lambda row: row[1])]
    return make_table(
        columns, [*calls.items()], style=lambda row: "alert" if row[1] == NOT_COVERED else ""
    )


def _checks(verdict: Verdict) -> Table:
    """A table with a row for each check."""
    columns = [
        Column("check", lambda check: check.name),
        Column("outcome", lambda check: check.outcome, left=True),
        Column("what it says", lambda check: check.says, left=True),
    ]
    return make_table(
        columns,
        verdict.checks,
        style=_check_style,
    )


def _check_style(check: Check) -> RowKind:
    if check.powerless:
        return "dim"
    return "good" if check.passed else "alert"
