"""``fedlsg attack``: what an adversary gets from recorded updates, beside what it can guess without them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import strategies
from fedlsg.attacks.observation import ThreatModel
from simulations.attack.images import page
from simulations.attack.images.attack import attack_images
from simulations.attack.images.catalogue import attacks_named
from simulations.attack.recorded import report
from simulations.attack.recorded.observations import Record, open_record
from simulations.attack.recorded.report import Section
from simulations.attack.texts.attack import attack_texts, is_text
from simulations.attack.texts.catalogue import text_attacks
from simulations.attack.texts.page import text_section
from simulations.compare.grid import numbers, words
from simulations.engines import local
from simulations.plan.plan import make_plan
from simulations.report.progress import Tick, bar
from simulations.rundir.rundir import RunDir, create
from simulations.server.diverged import refuse_diverged
from simulations.settings.published import resolve
from simulations.settings.settings import from_mapping, values_of

RECORDED: Mapping[str, object] = {"clients": 8, "rounds": 4, "batch_size": 1, "noise_multiplier": 1.0}
"""Of the runs that ``--compare`` records, unless -c says otherwise: small batches, one sigma for all."""


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
    out: str | None,
) -> None:
    """Attack runs, or runs of several methods recorded for it; print, write attack.json and attack.html.

    Raises ValueError for a wrong option, a run without recorded updates, a damaged record, or a threat model that
    asks for what is not there.
    """
    sizes = numbers("--batch", batches, int)
    if not sizes or min(sizes) < 1 or images < 1 or not seconds > 0:
        raise ValueError(f"expected --batch {batches} of 1 or more, --images {images} >= 1 and --seconds {seconds} > 0")
    if bool(runs) == bool(compare):
        raise ValueError("give either run directories, or --compare METHOD,METHOD to record and attack new runs")
    if runs and given:
        raise ValueError(f"a run has its settings; leave out {', '.join(sorted(given))}, or the runs")
    folder = place(runs, out)
    paths = list(runs) if compare is None else recorded(list(words(compare)), given, folder, console)
    records: list[Record] = []
    with console.status("loading data") as status:
        for path in paths:
            records.append(open_record(path, threat, progress=status.update))
    found: list[Section] = []
    with bar(console) as tick:
        for number, record in enumerate(records):
            made = attack_one(
                record, threat, batches=sizes, count=images, attacks=attacks, naive=naive, seconds=seconds, seed=seed,
                tick=lambda share, text, number=number: tick((number + share) / len(records), text),  # type: ignore[misc]
            )  # fmt: skip
            found.append(replace(made, label=label(record, records)))
    lead = f"{', '.join(one.label for one in found)}; {time.strftime('%Y-%m-%d')}; seed {seed}"
    folder.mkdir(parents=True, exist_ok=True)
    report.write(folder, found, threat, lead=lead)
    show(found, console)
    console.print(f"[bold]written[/bold]  {folder}/attack.html, attack.json", highlight=False, soft_wrap=True)


def attack_one(
    record: Record,
    threat: ThreatModel,
    *,
    batches: Sequence[int],
    count: int,
    attacks: str | None,
    naive: bool,
    seconds: float,
    seed: int,
    tick: Tick,
) -> Section:
    """The report's part about one run of images or texts. Raises ValueError for an attack that the kind has not."""
    if is_text(record.base.workload):
        on_texts = text_attacks(attacks, naive=naive)
        return text_section(
            attack_texts(
                record, threat, batches=batches, texts=count, attacks=on_texts, seconds=seconds, seed=seed, tick=tick
            )
        )
    on_images = None if attacks is None else attacks_named(attacks)
    made = attack_images(
        record, threat, batches=batches, images=count, attacks=on_images, naive=naive, seconds=seconds, seed=seed,
        tick=tick,
    )  # fmt: skip
    return page.section(made)


def label(record: Record, records: Sequence[Record]) -> str:
    """The method, with the directory's name where several runs have the same one."""
    method = record.base.settings.method
    same = sum(other.base.settings.method == method for other in records)
    return method if same == 1 else f"{method} ({record.run.path.name})"


def place(runs: Sequence[str], out: str | None) -> Path:
    """Where the files go: ``out``, the one run, or ``attack/`` here. Raises ValueError for a file."""
    path = Path(out or (runs[0] if len(runs) == 1 else "attack")).expanduser().resolve()
    if path.is_file():
        raise ValueError(f"{path} is a file; give --out as a folder")
    return path


def recorded(methods: Sequence[str], given: Mapping[str, Any], folder: Path, console: Console) -> list[str]:
    """One recorded run a method at equal settings, in ``folder``/METHOD; one that is there is taken as it is.

    Raises ValueError for methods that cannot be compared, and for a run that is there with other settings.
    """
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
                record_run(wanted, directory, status.update)
        paths.append(str(directory))
    return paths


def check_comparable(methods: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise ValueError for a method that is unknown, given twice, or has no noise where all are to have the same."""
    for method in methods:
        strategies.check_name(method)
    if len(set(methods)) < len(methods):
        raise ValueError(f"--compare {','.join(methods)} names a method twice")
    if "epsilon" in given:
        raise ValueError("--compare attacks methods at equal sigma: give noise_multiplier instead of epsilon")
    quiet = [method for method in methods if not strategies.recipe(method).mechanism.adds_noise]
    if quiet and "mechanism" not in given:
        raise ValueError(f"{quiet[0]} adds no noise: leave it out, or compare all without any, -c mechanism=none")


def check_recorded(directory: Path, wanted: Mapping[str, Any]) -> None:
    """Raise ValueError where the run that is there has other settings than those that are asked for."""
    there, asked = values_of(RunDir.open(str(directory)).read_config()), values_of(from_mapping(resolve(wanted)))
    for name in wanted:
        old, new = there.get(name), asked.get(name)
        if old != new:
            raise ValueError(f"{directory} was recorded with {name}={old}, not {new}; choose another --out")


def record_run(wanted: Mapping[str, Any], folder: Path, say: Any) -> None:
    """A run on the local engine whose payloads are kept."""
    plan = make_plan(from_mapping(resolve(wanted)), progress=say)
    directory: RunDir = create(str(folder), plan.settings)
    plan = replace(plan, settings=replace(plan.settings, run_dir=str(directory.path)))
    directory.write_config(plan.settings)
    refuse_diverged(local.run(plan, directory, on_round=lambda row: None))


def show(found: Sequence[Section], console: Console) -> None:
    """A table for each run, and the verdict below it."""
    for one in found:
        view = Table(title=one.label, box=SIMPLE_HEAD, pad_edge=False, title_justify="left", title_style="bold")
        for name in one.columns:
            view.add_column(name, justify="left" if name == "attack" else "right")
        for row in one.rows:
            view.add_row(*row)
        console.print(view)
        for name, why in one.refused.items():
            console.print(f"{name} does not apply: {why}", style="dim", markup=False, highlight=False, soft_wrap=True)
        console.print(one.facts, markup=False, highlight=False, soft_wrap=True)
        console.print(one.verdict, style="bold", markup=False, highlight=False, soft_wrap=True)
