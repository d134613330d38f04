"""``fedlsg attack --membership``: was this example in the training set? Trains shadow models of a run's settings."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fedlsg.attacks.membership import LossThreshold, loss_threshold
from fedlsg.randomness import public_generator
from simulations.attack.membership.findings import Report, facts, granted, tables, verdict
from simulations.attack.membership.measure import attack, claimed
from simulations.attack.membership.page import write
from simulations.attack.membership.per_round import per_round
from simulations.attack.membership.shadows import check_shadows, confidences, train_all
from simulations.attack.recorded.report import output_folder
from simulations.inspection.subject import refuse_settings
from simulations.plan.continuity import check_own_code
from simulations.plan.plan import Plan
from simulations.report.progress import bar
from simulations.report.terminal import checked, facts_shown, print_line, print_note, print_table
from simulations.report.words import duration
from simulations.rundir.examined import STATE
from simulations.rundir.rundir import RunDir
from simulations.server.ready import ready_plan
from simulations.settings.checks import refuse_groups, refuse_shuffled
from simulations.settings.published import resolve
from simulations.settings.run import Device
from simulations.settings.settings import Settings, from_mapping, names_given

SHADOWS = 16
USED = frozenset({
    "runs", "membership", "shadows", "workload", "method", "epsilon", "noise_multiplier", "seed", "device", "out",
    "config",
})  # fmt: skip
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
    """Train on ``device``, attack, print; write membership.json and membership.html.

    Raises ValueError for a wrong option, settings next to a run, or settings that cannot train on half of the data.
    """
    refuse_settings(run, given)
    shadows = SHADOWS if shadows is None else shadows
    check_shadows(shadows)
    folder = output_folder([] if run is None else [run], out)
    began = time.monotonic()
    wanted = from_mapping(resolve(given)) if run is None else checked(run, STATE, console).read_config()
    refuse_shuffled(wanted, "--membership")
    refuse_groups(wanted, "--membership")
    with console.status("loading data, calibrating noise") as status:
        plan = ready_plan(as_shadow(wanted, device), progress=status.update, given=names_given(given))
        claim = claimed(plan)
        if run is not None:
            check_own_code(plan, RunDir.open(run))
    rounds = plan.schedule.rounds
    print_line(f"training {shadows + 1} models of {rounds} rounds each: the target and {shadows} shadows", console)
    with bar(console, "training") as tick:
        models = train_all(plan, shadows=shadows, seed=seed, tick=tick)
    with console.status("attacking"):
        report = Report(
            settings=plan.settings,
            models=models,
            found=attack(models, seed=seed),
            claim=None if claim is None else claim[0],
            limits=() if claim is None else claim[1],
            rounds=per_round(plan, seed=seed),
            own=None if run is None or plan.unit.whole else own_model(run, plan, seed),
            seed=seed,
            seconds=time.monotonic() - began,
            test_examples=len(plan.workload.test),
        )
        write(folder, report, lead(report, run))
    show(report, console)
    console.print(f"[bold]written[/bold]  {folder}/membership.html, membership.json", highlight=False, soft_wrap=True)


def only(runs: Sequence[str], given: Collection[str]) -> str | None:
    """The only run, or None. Raises ValueError for several, and for options that --membership does not use."""
    unused = sorted(set(given) - USED)
    if unused:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise ValueError(f"--membership trains models and attacks no recorded update: leave out {names}")
    if len(runs) > 1:
        raise ValueError(f"--membership attacks one run at a time, got {len(runs)}: {', '.join(runs)}")
    return runs[0] if runs else None


def as_shadow(wanted: Settings, device: Device = "auto") -> Settings:
    """The settings of shadow models: nothing recorded, evaluated at the end only, reproducible noise."""
    wanted = replace(wanted, engine="local", device=device, record_updates=False)
    return replace(wanted, reproducible=True, evaluate_every=10**6, run_dir=None)


def own_model(run: str, plan: Plan, seed: int) -> LossThreshold | None:
    """Loss threshold of Yu et al. 2021 on the run's last model; None before its first checkpoint."""
    directory = RunDir.open(run)
    if not directory.checkpoint.exists():
        return None
    state = plan.server_state()
    state.load_state_dict(directory.load_checkpoint()["server"])
    generator = public_generator(seed, "membership", "own")
    train, test, device = plan.workload.train, plan.workload.test, plan.device
    rows = torch.randperm(len(train), generator=generator)[: len(test)]
    with state.evaluated() as model:
        ours, theirs = (
            torch.nn.functional.softplus(
                -torch.from_numpy(confidences(model, plan.workload, split, split.order(some), device))
            )
            for split, some in ((train, rows), (test, torch.arange(len(test))))
        )
        return loss_threshold(ours, theirs, generator)


def lead(report: Report, run: str | None) -> str:
    """One line: run, date, shadows, seed, time."""
    s = report.settings
    of = f"{s.workload}, {s.method}" if run is None else f"{Path(run).resolve().name} ({s.workload}, {s.method})"
    minutes = duration(report.seconds)
    return f"{of}; {time.strftime('%Y-%m-%d')}; {len(report.models.inside) - 1} shadows, seed {report.seed}; {minutes}"


def show(report: Report, console: Console) -> None:
    """The tables, the verdict last."""
    for table in tables(report):
        print_table(table, console)
    print_note("what the attacker is granted", console)
    for name, text in granted(report).items():
        print_line(f"{name}: {text}", console, "dim")
    console.print(facts_shown(facts(report)), highlight=False)
    print_line(verdict(report), console, "bold")
