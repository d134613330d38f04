"""``fedlsg attack --membership``: was this example in the training set? Trains shadow models of a run's settings."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as View

from fedlsg.attacks.membership.loss_threshold import LossThreshold, loss_threshold
from fedlsg.randomness import public_generator
from simulations.attack.membership.findings import Report, facts, granted, tables, verdict
from simulations.attack.membership.measure import attack, claimed
from simulations.attack.membership.page import write
from simulations.attack.membership.per_round import per_round
from simulations.attack.membership.shadows import check_shadows, confidences, train_all
from simulations.plan.plan import Plan, make_plan
from simulations.report.progress import bar
from simulations.rundir.rundir import RunDir
from simulations.settings.published import resolve
from simulations.settings.settings import Settings, from_mapping

SHADOWS = 16
USED = frozenset(
    {"runs", "membership", "shadows", "workload", "method", "epsilon", "noise_multiplier", "seed", "out", "config"}
)
"""Options of ``fedlsg attack`` that --membership reads."""


def membership_command(
    run: str | None, given: Mapping[str, Any], console: Console, *, shadows: int | None, seed: int, out: str | None
) -> None:
    """Train, attack, print; write membership.json and membership.html.

    Raises ValueError for a wrong option, settings beside a run, or settings that no half can be trained with.
    """
    if run is not None and given:
        raise ValueError(f"a run has its settings; leave out {', '.join(sorted(given))}, or the run")
    shadows = SHADOWS if shadows is None else shadows
    check_shadows(shadows)
    folder = place(run, out)
    began = time.monotonic()
    wanted = from_mapping(resolve(given)) if run is None else RunDir.open(run).read_config()
    with console.status("loading data, calibrating noise") as status:
        plan = make_plan(as_shadow(wanted), progress=status.update)
        claim = claimed(plan)
    with bar(console) as tick:
        models = train_all(plan, shadows=shadows, seed=seed, tick=tick)
    with console.status("attacking"):
        report = Report(
            settings=plan.settings,
            models=models,
            found=attack(models, seed=seed),
            claim=None if claim is None else claim[0],
            limits=() if claim is None else claim[1],
            rounds=per_round(plan, seed=seed),
            own=None if run is None else own_model(run, plan, seed),
            seed=seed,
            seconds=time.monotonic() - began,
        )
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, report, lead(report, run))
    show(report, console)
    console.print(f"[bold]written[/bold]  {folder}/membership.html, membership.json", highlight=False, soft_wrap=True)


def only(runs: Sequence[str], asked: Collection[str]) -> str | None:
    """The one run, or None. Raises ValueError for several, and for options that --membership has no use for."""
    unused = sorted(set(asked) - USED)
    if unused:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise ValueError(f"--membership trains models and attacks no recorded update: leave out {names}")
    if len(runs) > 1:
        raise ValueError(f"--membership attacks one run at a time, got {len(runs)}: {', '.join(runs)}")
    return runs[0] if runs else None


def place(run: str | None, out: str | None) -> Path:
    """Where the files go: ``out``, the run, or ``attack/`` here. Raises ValueError for a file."""
    path = Path(out or run or "attack").expanduser().resolve()
    if path.is_file():
        raise ValueError(f"{path} is a file; give --out as a folder")
    return path


def as_shadow(wanted: Settings) -> Settings:
    """The settings as shadow models are trained: nothing recorded, nothing evaluated on the way, noise that repeats."""
    if wanted.device == "cuda" and not torch.cuda.is_available():
        wanted = replace(wanted, device="cpu")  # a run made on a GPU can be attacked without one
    return replace(wanted, engine="local", record_updates=False, reproducible=True, evaluate_every=10**6, run_dir=None)


def own_model(run: str, plan: Plan, seed: int) -> LossThreshold | None:
    """001's protocol on the run's own last model: training against test examples; None before its first checkpoint."""
    directory = RunDir.open(run)
    if not directory.checkpoint.exists():
        return None
    state = plan.server_state()
    state.load_state_dict(directory.load_checkpoint()["server"])
    generator = public_generator(seed, "membership", "own")
    train, test, device = plan.workload.train, plan.workload.test, plan.settings.device
    rows = torch.randperm(len(train), generator=generator)[: len(test)]
    with state.evaluated() as model:
        ours, theirs = (
            torch.nn.functional.softplus(-torch.from_numpy(confidences(model, split, split.order(some), device)))
            for split, some in ((train, rows), (test, torch.arange(len(test))))
        )
        return loss_threshold(ours, theirs, generator)


def lead(report: Report, run: str | None) -> str:
    """The page's second line."""
    s = report.settings
    of = f"{s.workload}, {s.method}" if run is None else f"{Path(run).resolve().name} ({s.workload}, {s.method})"
    minutes = f"{report.seconds / 60:.1f} minutes"
    return f"{of}; {time.strftime('%Y-%m-%d')}; {len(report.models.inside) - 1} shadows, seed {report.seed}; {minutes}"


def show(report: Report, console: Console) -> None:
    """The tables, the verdict last."""
    for table in tables(report):
        view = View(title=table.title, box=SIMPLE_HEAD, pad_edge=False, title_justify="left", title_style="bold")
        for name in table.columns:
            view.add_column(name, justify="left" if name == "attack" else "right")
        for row in table.rows:
            view.add_row(*(cell.replace(" [", "\n[") for cell in row))
        console.print(view)
    console.print("what the attacker is granted", style="dim")
    for name, text in granted(report).items():
        console.print(f"{name}: {text}", style="dim", markup=False, highlight=False, soft_wrap=True)
    console.print(facts(report), markup=False, highlight=False, soft_wrap=True)
    console.print(verdict(report), style="bold", markup=False, highlight=False, soft_wrap=True)
