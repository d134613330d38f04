"""``fedlsg attack``: what an adversary gets from recorded updates, next to what it can guess without them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fedlsg.attacks.observation import ThreatModel
from simulations.attack.images.attack import attack_images
from simulations.attack.images.page import image_findings
from simulations.attack.recorded import report
from simulations.attack.recorded.observations import Record, open_record
from simulations.attack.recorded.report import Findings, output_folder, refusals
from simulations.attack.recorded.target import LARGE_BATCH, Options, batch_sizes
from simulations.attack.recording import record_all, record_like
from simulations.attack.texts.attack import attack_texts
from simulations.attack.texts.page import text_findings
from simulations.compare.cells.grid_file import numbers, words
from simulations.report.progress import Tick, bar
from simulations.report.terminal import print_line, print_note, print_table
from simulations.rundir.rundir import RunDir
from simulations.settings.device import device_of
from simulations.settings.run import Device
from simulations.workloads.base.workload import LoadedWorkload


def attack_command(
    runs: Sequence[str],
    console: Console,
    *,
    compare: str | None,
    given: Mapping[str, Any],
    threat: ThreatModel,
    batches: str | None,
    images: int,
    attacks: str | None,
    naive: bool,
    seconds: float | None,
    seed: int,
    record: bool = False,
    device: Device = "auto",
    out: str | None,
) -> None:
    """Attack runs, or runs of several methods recorded for it; print, write attack.json and attack.html.

    ``batches``: sizes with commas; None: the smallest that a run has. ``record``: attack a short run like each run,
    with one example a batch, in its place. ``device``: of the matching attacks, and of the runs that are recorded.
    Raises ValueError for a wrong option, a run without recorded updates, a damaged record, or a threat model that
    is impossible for the run.
    """
    sizes = None if batches is None else tuple(numbers("--batch", batches, int))
    options = Options(
        batches=sizes, examples=images, attacks=attacks, naive=naive, seconds=seconds, seed=seed,
        device=device_of(device),
    )  # fmt: skip
    check_subjects(runs, compare, given, record=record)
    folder = output_folder(runs, out)
    for path in runs:
        refuse_features(RunDir.open(path).read_config().features)
    if compare is not None:
        paths = record_all(list(words(compare)), given, folder, console, device)
    elif record:
        paths = [record_like(run, given, folder / name, console, device, examples=images) for run, name in places(runs)]
    else:
        paths = list(runs)
    with console.status("loading data") as status:
        records = [open_record(path, threat, progress=status.update) for path in paths]
    if not record:
        for one in records:
            hint(one, options, console)
    findings: list[Findings] = []
    with bar(console, "attacking") as tick:
        for number, attacked in enumerate(records):

            def part(share: float, text: str, number: int = number) -> None:
                tick((number + share) / len(records), text)

            made = attack_one(attacked, threat, options, part)
            findings.append(replace(made, label=label(attacked, records)))
    lead = f"{', '.join(one.label for one in findings)}; {time.strftime('%Y-%m-%d')}; seed {seed}"
    report.write(folder, findings, threat, lead=lead)
    show(findings, console)
    console.print(f"[bold]written[/bold]  {folder}/attack.html, attack.json", highlight=False, soft_wrap=True)


def check_subjects(runs: Sequence[str], compare: str | None, given: Mapping[str, Any], *, record: bool = False) -> None:
    """Raise ValueError unless there are either runs, or methods to compare; what is recorded takes settings."""
    if bool(runs) == bool(compare):
        raise ValueError("give either run directories, or --compare METHOD,METHOD to record and attack new runs")
    if record and compare:
        raise ValueError("--compare records runs of its own: leave out --record")
    if runs and given and not record:
        raise ValueError(
            f"a run has its settings; leave out {', '.join(sorted(given))}, or the runs, or add --record to record a "
            "short run with these settings"
        )
    refuse_features(given.get("features"))


def places(runs: Sequence[str]) -> list[tuple[str, str]]:
    """Each run with the name of the folder that the short run like it is recorded in."""
    if len(runs) == 1:
        return [(runs[0], "recorded")]
    names = [Path(run).expanduser().resolve().name for run in runs]
    return [(run, f"{name}-{names[:n].count(name) + 1}" if name in names[:n] else name)
            for n, (run, name) in enumerate(zip(runs, names, strict=True))]  # fmt: skip


def hint(record: Record, options: Options, console: Console) -> None:
    """Say that the smallest batches of a record are too large for an attack to say much, and what to do."""
    smallest = min((size for of in batch_sizes(record).values() for size in of.values() if size), default=0)
    if options.batches is None and smallest > LARGE_BATCH and record.base.settings.trust == "client":
        print_line(
            f"{record.run.path.name}: the smallest recorded batch has {smallest} examples, which hide each other even "
            "without noise; --record records a short run like it with one example a batch, and attacks that",
            console,
            "yellow",
        )


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


def show(findings: Sequence[Findings], console: Console) -> None:
    """The table of each run, and the verdict below it."""
    for one in findings:
        print_table(replace(one.table, title=one.label), console)
        for line in refusals(one):
            print_note(line, console)
        print_line(one.facts, console)
        print_line(one.verdict, console, "bold")
