"""``fedlsg audit``: try to prove a claimed epsilon wrong. It can end in "falsified", and never in "verified"."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from fedlsg.attacks.audit.checks import unit_checks
from fedlsg.attacks.audit.plants import PLANTS, planted, refuse_plant
from fedlsg.attacks.audit.setting import canaries as enough_canaries
from fedlsg.attacks.audit.unit_mode import record, ticks
from fedlsg.attacks.audit.verdict import SIGNIFICANCE, Verdict, as_dict, judge
from simulations.audit.page import page
from simulations.audit.subject import Audited, audited_run, audited_settings
from simulations.audit.training import KINDS, audit_training
from simulations.inspection.subject import refuse_settings
from simulations.report.page import Row, Table, json_text
from simulations.report.progress import count_bar
from simulations.report.terminal import checked, print_line, print_table
from simulations.rundir.examined import STATE
from simulations.rundir.files.atomic import check_writable, write_atomically, writing_to
from simulations.settings.run import Device

MODES = ("unit", "training")
FALSIFIED = 1
PLANTED = "planted: {}. The mechanism that runs is not the claimed one; the audit does not know it."
EXPECTED = (
    "How much noise there must be follows from epsilon, delta, q, the steps and who reads, in code that the planner "
    "does not use: {reader}."
)
GRADIENTS = (
    "The auditor chooses the gradients of the canaries, which are examples. It knows frame, mask, clip, sigma and q, "
)
UPDATES = (
    "The auditor chooses the updates of the canaries, which are clients: what their local training ends with. It knows "
    "frame, mask, clip, sigma and q, "
)
SUM = (
    "and sees the sum of every round that the server decodes, of the fewest clients that may be in one, less the "
    "values and the noise of those who read along. "
)
SECRET = "Which canaries are in, the batches and the noise are secret. "
SECRET_OF_CLIENTS = "Which canaries are in, and the noise, are secret. "
ELSE = "the wire, the server, and the frames of other rounds."
THREATS = {
    ("client", "example"): f"{GRADIENTS}and sees the noisy sum of every round of one client. {SECRET}Not covered: the "
    f"backward pass, {ELSE}",
    ("aggregate", "example"): f"{GRADIENTS}and sees the sum of every round over the fewest clients that may be in one, "
    "as an ideal secure sum would give it, less the noise of one of them, who reads along; nobody provides this sum. "
    f"{SECRET}Not covered: the backward pass, {ELSE}",
    ("secure", "example"): f"{GRADIENTS}{SUM}{SECRET}Not covered: masks and keys, the backward pass, {ELSE}",
    ("secure", "client"): f"{UPDATES}{SUM}{SECRET_OF_CLIENTS}Not covered: masks and keys, local training, {ELSE}",
    ("server", "client"): f"{UPDATES}and sees what the server releases of every round. Which canaries are in, which "
    "clients the server draws, and the noise, are secret. Not covered: local training, the wire, the noisy count of an "
    "adaptive clip, and the frames of other rounds.",
}
TRAINING = (
    "Canaries are training examples with a wrong label, or images of another kind. The auditor knows every "
    "example and the public state of every round, and sees every payload of each client as it was sent. Which "
    "canaries are in, the batches and the noise are secret."
)


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
    """Audit on ``device`` and print; returns the exit status: 0 for "not falsified", 1 for "falsified".

    Raises ValueError for settings next to a run, an unknown mode, plant or kind of canary, or a mechanism that claims
    no epsilon.
    """
    check_options(run, given, mode=mode, plant=plant, canary_kind=canary_kind)
    path = place(run, out)
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
    verdict, count, kind = audit_mode(audited, console, canaries=canaries, kind=canary_kind, plant=plant, seed=seed)
    report = as_dict(verdict) | circumstances(audited, mode, count, kind, seed=seed, plant=plant)
    report["seconds"] = round(time.monotonic() - began, 1)
    data = json_text(report, indent=2, not_finite=str)
    warnings = (audited.not_private or "", "" if plant is None else PLANTED.format(plant))
    table, html = figures(verdict, count, audited.not_private), path.with_suffix(".html")
    made = page(verdict, table, report, data, name=path.name, warnings=tuple(filter(None, warnings)))
    with writing_to(path.parent):
        write_atomically(path, data, private=True)
        write_atomically(html, made.encode(), private=True)
    show(verdict, count, threats(audited, mode), console, not_private=audited.not_private)
    console.print(f"[bold]written[/bold]  {path}, {html.name}", highlight=False, soft_wrap=True)
    return FALSIFIED if verdict.falsified else 0


def check_options(
    run: str | None, given: Mapping[str, Any], *, mode: str, plant: str | None, canary_kind: str | None
) -> None:
    """Raise ValueError for settings next to a run, and for an unknown mode, plant or kind of canary."""
    refuse_settings(run, given)
    if mode not in MODES:
        raise ValueError(f"expected --mode in {', '.join(MODES)}, got {mode!r}")
    if plant is not None and plant not in PLANTS:
        raise ValueError(f"expected --plant in {', '.join(PLANTS)}, got {plant!r}")
    if canary_kind is not None and (mode != "training" or canary_kind not in KINDS):
        raise ValueError(f"expected --canary-kind in {', '.join(KINDS)}, with --mode training, got {canary_kind!r}")


def circumstances(
    audited: Audited, mode: str, canaries: int, kind: str, *, seed: int | None, plant: str | None
) -> dict[str, Any]:
    """What audit.json says of an audit, in addition to its verdict."""
    settings = audited.subject.base.settings
    return {
        "claimed_by": audited.source,
        "reproducible": audited.reproducible,
        "not_private": audited.not_private,
        "mode": mode,
        "canaries": canaries,
        "canary_kind": kind,
        "threat_model": threats(audited, mode),
        "trust": audited.stated.trust,
        "unit": audited.stated.unit,
        "reader": audited.stated.reader,
        "method": settings.method,
        "workload": settings.workload,
        "seed": seed,
        "plant": plant,
    }


def threats(audited: Audited, mode: str) -> str:
    """What the auditor knows and sees, and what there must be of noise."""
    if mode == "training":
        return TRAINING
    stated = audited.stated
    return f"{THREATS[stated.trust, stated.unit]} {EXPECTED.format(reader=stated.reader)}"


def place(run: str | None, out: str | None) -> Path:
    """Where audit.json goes. Raises ValueError for a folder, or one that does not exist."""
    path = Path(out or ("audit.json" if run is None else Path(run) / "audit.json")).expanduser().resolve()
    if path.is_dir() or (out is not None and not path.parent.is_dir()):
        raise ValueError(f"cannot write {path}: give --out as a file in a folder that exists, such as audit.json")
    check_writable(path.parent)
    return path


def audit_unit(
    audited: Audited, console: Console, *, canaries: int | None, kind: str | None, plant: str | None, seed: int | None
) -> tuple[Verdict, int, str]:
    """Canaries through the shipped mechanism; the plant is in the mechanism only, unknown to the judge.

    Also how many canaries there were, and of which kind: ``kind`` is for the training mode only.
    """
    setting = audited.setting
    count = enough_canaries(setting) if canaries is None else canaries
    with (
        count_bar(console, "rounds", ticks(setting, count)) as tick,
        planted(plant, clients=setting.stated.members),
    ):
        recording = record(setting, count, seed=seed, tick=tick)
    with console.status("computing bounds"):
        verdict = judge(recording.scores, recording.included, audited.claim, unit_checks(recording, setting))
    return verdict, count, "updates" if setting.stated.whole else "gradients"


def announce(audited: Audited, mode: str, plant: str | None, console: Console) -> None:
    """The claim, and the mistake that is planted."""
    claim, s = audited.claim, audited.subject.base.settings
    console.print(
        f"claim of {audited.source}: {s.workload}, method {s.method}, epsilon {claim.epsilon:.3f} at delta "
        f"{claim.delta:g} for {claim.steps} steps at q = {claim.sample_rate:.4g}, trust={s.trust}, unit={s.unit}, "
        f"which needs sigma_eff {claim.noise_multiplier:.4g}; mode {mode}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if audited.not_private is not None:
        print_line(audited.not_private, console, "bold red")
    if plant is not None:
        print_line(PLANTED.format(plant), console, "yellow")


def show(verdict: Verdict, canaries: int, threat: str, console: Console, *, not_private: str | None = None) -> None:
    """The figures, the checks, the threat model, and the verdict last; ``not_private`` says why a claim is void."""
    print_table(figures(verdict, canaries, not_private), console)
    for check in verdict.checks:
        mark, style = ("passed", "dim") if check.passed else ("FAILED", "bold red")
        print_line(f"{mark}  {check.name}: {check.says}", console, style)
    console.print(f"threat model: {threat}", markup=False, highlight=False)
    if verdict.falsified:
        text = f"falsified by: {', '.join(verdict.reasons)}"
        print_line(text, console, "bold red")
    else:
        console.print("not falsified", style="bold", markup=False, highlight=False)


def figures(verdict: Verdict, canaries: int, not_private: str | None) -> Table:
    """The claimed epsilon, the bounds from below, and the estimate."""
    void = "" if not_private is None else f"; {not_private}"
    confidence = f"{100 * (1 - SIGNIFICANCE):g} %"
    rows = [("claimed", f"{verdict.claim.epsilon:.3f}", f"at delta {verdict.claim.delta:g}{void}")]
    for name, bound in (("one-run bound", verdict.one_run), ("f-DP one-run bound", verdict.f_dp)):
        g = bound.guesses
        text = f"{g.correct} of {g.guesses} guesses right, {canaries} canaries, {confidence} confidence"
        rows.append((name, f">= {bound.epsilon:.3f}", text))
    mu, e = verdict.estimate.mu, verdict.estimate.epsilon
    text = f"mu {mu.value:.3f}, epsilon {e.low:.3f} to {e.high:.3f} at 95 %; an estimate, no bound"
    rows.append(("GDP estimate", f"{e.value:.3f}", text))
    return Table(columns=("figure", "epsilon", "evidence"), rows=tuple(Row(cells=cells) for cells in rows), left=(0, 2))
