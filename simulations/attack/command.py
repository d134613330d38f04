"""``fedlsg attack``: what an adversary gets from recorded updates, next to what it can guess without them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import strategies
from fedlsg.attacks.observation import ThreatModel
from simulations.attack.images.attack import attack_images
from simulations.attack.images.page import image_findings
from simulations.attack.recorded import report
from simulations.attack.recorded.observations import Record, open_record
from simulations.attack.recorded.report import Findings, output_folder, refusals
from simulations.attack.recorded.target import Options
from simulations.attack.texts.attack import attack_texts
from simulations.attack.texts.page import text_findings
from simulations.compare.cells.grid_file import numbers, words
from simulations.engines import local
from simulations.plan.plan import make_plan
from simulations.report.progress import Tick, bar
from simulations.report.terminal import print_line, print_note, print_table
from simulations.rundir.rundir import RunDir, create
from simulations.server.diverged import refuse_diverged
from simulations.settings.device import device_of
from simulations.settings.published import resolve
from simulations.settings.refusals import all_refused, left_out, refusal
from simulations.settings.run import Device
from simulations.settings.settings import from_mapping, parse, values_of
from simulations.workloads.base.workload import LoadedWorkload

RECORDED: Mapping[str, object] = {"clients": 8, "rounds": 4, "batch_size": 1, "noise_multiplier": 1.0}
"""Default settings of the runs that ``--compare`` records: small batches, the same sigma for all."""


def attack_command(
    runs: Sequence[str],
    console: Console,
    *,
    compare: str | None,
    given: Mapping[str, Any],
    threat: ThreatModel,
    batches: str,
    images: int,
    attacks: str | None,
    naive: bool,
    seconds: float,
    seed: int,
    device: Device = "auto",
    out: str | None,
) -> None:
    """Attack runs, or runs of several methods recorded for it; print, write attack.json and attack.html.

    ``device``: of the matching attacks, and of the runs that are recorded.
    Raises ValueError for a wrong option, a run without recorded updates, a damaged record, or a threat model that
    is impossible for the run.
    """
    sizes = tuple(numbers("--batch", batches, int))
    options = Options(
        batches=sizes, examples=images, attacks=attacks, naive=naive, seconds=seconds, seed=seed,
        device=device_of(device),
    )  # fmt: skip
    check_subjects(runs, compare, given)
    folder = output_folder(runs, out)
    for path in runs:
        refuse_features(RunDir.open(path).read_config().features)
    paths = list(runs) if compare is None else record_all(list(words(compare)), given, folder, console, device)
    with console.status("loading data") as status:
        records = [open_record(path, threat, progress=status.update) for path in paths]
    findings: list[Findings] = []
    with bar(console) as tick:
        for number, record in enumerate(records):

            def part(share: float, text: str, number: int = number) -> None:
                tick((number + share) / len(records), text)

            made = attack_one(record, threat, options, part)
            findings.append(replace(made, label=label(record, records)))
    lead = f"{', '.join(one.label for one in findings)}; {time.strftime('%Y-%m-%d')}; seed {seed}"
    report.write(folder, findings, threat, lead=lead)
    show(findings, console)
    console.print(f"[bold]written[/bold]  {folder}/attack.html, attack.json", highlight=False, soft_wrap=True)


def check_subjects(runs: Sequence[str], compare: str | None, given: Mapping[str, Any]) -> None:
    """Raise ValueError unless there are either runs, or methods to compare, which alone take settings."""
    if bool(runs) == bool(compare):
        raise ValueError("give either run directories, or --compare METHOD,METHOD to record and attack new runs")
    if runs and given:
        raise ValueError(f"a run has its settings; leave out {', '.join(sorted(given))}, or the runs")
    refuse_features(given.get("features"))


def refuse_features(features: str | None) -> None:
    """Raise ValueError for a run on public features: no attack here goes from a head's updates to pixels or words."""
    if features is not None:
        raise ValueError(
            f"features={features}: the run trains a head on features, and these attacks rebuild the pixels or words "
            "that a model reads: attack a run without features, or use --membership"
        )


def attack_one(record: Record, threat: ThreatModel, options: Options, tick: Tick) -> Findings:
    """What attacks find on one run of images or texts. Raises ValueError for an attack of the other kind."""
    if is_text(record.base.workload):
        return text_findings(attack_texts(record, threat, options, tick))
    return image_findings(attack_images(record, threat, options, tick))


def is_text(workload: LoadedWorkload) -> bool:
    """Whether the inputs are tokens."""
    inputs, _ = workload.test.batch(torch.tensor([0]))
    return isinstance(inputs, dict) and "input_ids" in inputs


def label(record: Record, records: Sequence[Record]) -> str:
    """The method, with the name of the directory if several runs have the same method."""
    method = record.base.settings.method
    same = sum(other.base.settings.method == method for other in records)
    return method if same == 1 else f"{method} ({record.run.path.name})"


def record_all(
    methods: Sequence[str], given: Mapping[str, Any], folder: Path, console: Console, device: Device
) -> list[str]:
    """One recorded run for each method at equal settings, in ``folder``/METHOD; existing runs are reused.

    Raises ValueError for methods that cannot be compared, and for an existing run with other settings.
    """
    for method in methods:
        strategies.check_name(method)
    methods = accepted(methods, given, console)
    check_comparable(methods, given)
    paths = []
    for method in methods:
        directory = folder / method
        wanted = {**RECORDED, **given, "method": method, "engine": "local", "record_updates": True}
        if given.get("mechanism") in ("none", "clip-only"):
            wanted.pop("noise_multiplier")
        if (directory / "summary.json").exists():
            check_recorded(directory, wanted)
        else:
            with console.status(f"recording a run of {method}") as status:
                record_run({**wanted, "device": device}, directory, status.update)
        paths.append(str(directory))
    return paths


def accepted(methods: Sequence[str], given: Mapping[str, Any], console: Console) -> list[str]:
    """The methods that the settings do not refuse; a line names the others and says why.

    Raises ValueError, with the reasons, if no method is left.
    """
    common = parse({**RECORDED, **given})
    reasons = {method: refusal({**common, "method": method}) for method in methods}
    refused = {method: reason for method, reason in reasons.items() if reason is not None}
    if refused and len(refused) == len(reasons):
        raise all_refused(refused)
    for line in left_out(refused):
        print_line(line, console, "yellow")
    return [method for method in methods if method not in refused]


def check_comparable(methods: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise ValueError for a method that is given twice, or has no noise while others have."""
    if len(set(methods)) < len(methods):
        raise ValueError(f"--compare {','.join(methods)} names a method twice")
    if "epsilon" in given:
        raise ValueError("--compare attacks methods at equal sigma: give noise_multiplier instead of epsilon")
    quiet = [method for method in methods if not strategies.recipe(method).mechanism.adds_noise]
    if quiet and "mechanism" not in given:
        raise ValueError(
            f"{quiet[0]} adds no noise: leave it out, or compare all methods without noise, -c mechanism=none"
        )


def check_recorded(directory: Path, wanted: Mapping[str, Any]) -> None:
    """Raise ValueError if the existing run has other settings than ``wanted``."""
    before, now = values_of(RunDir.open(str(directory)).read_config()), values_of(from_mapping(resolve(wanted)))
    for name in wanted:
        old, new = before.get(name), now.get(name)
        if old != new:
            raise ValueError(f"{directory} was recorded with {name}={old}, not {new}; choose another --out")


def record_run(wanted: Mapping[str, Any], folder: Path, say: Any) -> None:
    """Run on the local engine and keep every payload."""
    plan = make_plan(from_mapping(resolve(wanted)), progress=say)
    directory: RunDir = create(str(folder), plan.settings)
    plan = replace(plan, settings=replace(plan.settings, run_dir=str(directory.path)))
    directory.write_config(plan.settings)
    refuse_diverged(local.run(plan, directory, on_round=lambda row: None))


def show(findings: Sequence[Findings], console: Console) -> None:
    """The table of each run, and the verdict below it."""
    for one in findings:
        print_table(replace(one.table, title=one.label), console)
        for line in refusals(one):
            print_note(line, console)
        print_line(one.facts, console)
        print_line(one.verdict, console, "bold")
