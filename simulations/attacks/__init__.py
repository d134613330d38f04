"""``fedlsg attack``: what an adversary gets from recorded updates, next to blind guesses.

observations   what a run recorded
recording      runs that are made to be attacked
target         which updates are attacked, and all attacks on each
images_attack  the attack on updates of images
images_score   images compared with the truth and with the blind guess
texts_attack   the attack on updates of texts
texts_known    what is known of texts beforehand
texts_score    texts compared with the truth and with the blind guess
findings       rows, verdict and facts of a run that was attacked
attack_page    attack.json and attack.html
before_after   two settings on the very same examples
question       what a page answers, and the names of its files
membership     who was trained on, by shadow models
whole_updates  updates of whole clients, which ``fedlsg.flower`` recorded
audit          ``fedlsg audit``: tries to prove an epsilon wrong
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fedlsg.attacks.observation import ThreatModel
from fedlsg.simulations.attacks.attack_page import in_short, output_folder, refusals, write
from fedlsg.simulations.attacks.findings import Findings, findings_of
from fedlsg.simulations.attacks.images_attack import Images
from fedlsg.simulations.attacks.observations import (
    Record,
    Recorded,
    check_replayed,
    open_record,
    refuse_unseen,
)
from fedlsg.simulations.attacks.question import question_of, words_of_each
from fedlsg.simulations.attacks.recording import Check, record_all, record_like
from fedlsg.simulations.attacks.target import LARGE_BATCH, Kind, Options, attack_each, batch_sizes
from fedlsg.simulations.compare.grid.grid_file import numbers, words
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.report.terminals.progress import Tick, bar
from fedlsg.simulations.report.terminals.terminal import (
    checked,
    facts_shown,
    print_line,
    print_note,
    print_table,
    print_written,
)
from fedlsg.simulations.settings.any_run import Device
from fedlsg.simulations.settings.automatic import device_of
from fedlsg.simulations.storage.examined import RECORD, RESULTS
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads import own
from fedlsg.simulations.workloads.base import LoadedWorkload

MAX_NAMED_RUNS = 4
"""More runs than these are not named in the first line of the page."""
SPELT = {"rank": "rank", "sparsity": "sparsity", "noise_multiplier": "sigma"}
"""Settings by which runs of one method are told apart, and what they are called."""


def attack_command(
    runs: Sequence[str],
    console: Console,
    *,
    compare: str | None,
    given: Mapping[str, Any],
    threat: ThreatModel,
    options: Options,
    record: bool = False,
    sparsities: str | None = None,
    sigmas: str | None = None,
    device: Device = "auto",
    out: str | None,
) -> None:
    """Attack runs, or runs of several methods recorded for it; print, write attack.json and
    attack.html, or attack-2 and so on next to pages of other questions.

    ``record``: attack a short run like each run, with one example a batch, in its place.
    ``sparsities``, ``sigmas``: of the runs that are compared. ``device``: of the matching attacks,
    and of the runs that are recorded.
    Raises ValueError for a wrong option, a run without recorded updates, a damaged record, or a
    threat model that is impossible for the run.
    """
    check_subjects(runs, compare, given, record=record)
    axes = {
        name: None if value is None else numbers(f"--{name}", value, float)
        for name, value in (("sparsities", sparsities), ("sigmas", sigmas))
    }
    if compare is None and any(axes.values()):
        raise ValueError(
            "--sparsities and --sigmas are of runs that --compare records: add that, or leave them "
            "out"
        )
    folder = output_folder(runs, out)
    for path in runs:
        settings = checked(path, RESULTS if record else RECORD, console).read_config()
        if "trust" not in given:
            refuse_unseen(settings.trust, threat)
    if compare is not None:
        check = check_of(threat, options)
        made = record_all(list(words(compare)), given, folder, console, device, check, **axes)
    elif record:
        check, most = check_of(threat, options), options.examples
        made = [
            record_like(run, given, folder / name, console, device, check, examples=most)
            for run, name in places(runs)
        ]
    else:
        made = [Recorded(path=run) for run in runs]
    with console.status("loading data") as status:
        records = [
            open_record(one.path, threat, whole_epsilon=one.epsilon, progress=status.update)
            for one in made
        ]
    if not record:
        for one in records:
            hint(one, options, console)
    findings: list[Findings] = []
    # a closed form takes no time, and a search ends where it converges
    with bar(console, "attacking", even=False) as tick:
        for number, attacked in enumerate(records):

            def part(share: float, text: str, number: int = number) -> None:
                tick((number + share) / len(records), text)

            found = attack_one(attacked, threat, options, part)
            findings.append(replace(found, label=label(attacked, records)))
    names = (
        " | ".join(one.label for one in findings)
        if len(findings) <= MAX_NAMED_RUNS
        else f"{len(findings)} runs"
    )
    lead = f"{names}; {time.strftime('%Y-%m-%d')}; seed {options.seed}"
    question = question_of(
        runs,
        folder,
        threat,
        options,
        compare=compare,
        record=record,
        given=words_of_each(given),
        **axes,
    )
    files = write(folder, findings, threat, question=question, lead=lead)
    show(findings, console)
    print_written(folder, files, console)


def options_of(
    *,
    batches: str | None,
    images: int,
    attacks: str | None,
    naive: bool,
    seconds: float | None,
    seed: int,
    device: Device,
) -> Options:
    """Options of a command line. ``batches``: sizes with commas; None: the smallest that a run has.
    Raises ValueError for a number out of range.
    """
    return Options(
        batches=None if batches is None else tuple(numbers("--batch", batches, int)),
        examples=images,
        attacks=attacks,
        naive=naive,
        seconds=seconds,
        seed=seed,
        device=device_of(device),
    )


def check_subjects(
    runs: Sequence[str], compare: str | None, given: Mapping[str, Any], *, record: bool = False
) -> None:
    """Raise ValueError unless there are either runs, or methods to compare; what is recorded takes
    settings.
    """
    if bool(runs) == bool(compare):
        raise ValueError(
            "give either run directories, or --compare METHOD,METHOD to record and attack new "
            "runs; or --against mechanism=none for a picture of before and after, or --membership "
            "for who was in the training set"
        )
    if record and compare:
        raise ValueError("--compare records runs of its own: leave out --record")
    if runs and given and not record:
        raise ValueError(
            f"a run has its settings; leave out {', '.join(sorted(given))}, or the runs, or add "
            "--record to record a short run with these settings"
        )


def places(runs: Sequence[str]) -> list[tuple[str, str]]:
    """Each run with the name of the folder that the short run like it is recorded in."""
    if len(runs) == 1:
        return [(runs[0], "recorded")]
    names = [Path(run).expanduser().resolve().name for run in runs]
    return [
        (run, f"{name}-{names[:n].count(name) + 1}" if name in names[:n] else name)
        for n, (run, name) in enumerate(zip(runs, names, strict=True))
    ]


def hint(record: Record, options: Options, console: Console) -> None:
    """Say that the smallest batches of a record are too large for an attack to say much, and what
    to do.
    """
    smallest = min(
        (size for of in batch_sizes(record).values() for size in of.values() if size), default=0
    )
    if (
        options.batches is None
        and smallest > LARGE_BATCH
        and record.base.settings.trust == "client"
    ):
        print_line(
            f"{record.run.path.name}: the smallest recorded batch has {smallest} examples, which "
            "hide each other even without noise; --record records a short run like it with one "
            "example a batch, and attacks that",
            console,
            "yellow",
        )


def attack_one(record: Record, threat: ThreatModel, options: Options, tick: Tick) -> Findings:
    """What attacks find on one run of images or texts. Raises ValueError for an attack of the other
    kind.
    """
    return findings_of(attack_each(kind_of(record), record, threat, options, tick))


def kind_of(record: Record) -> Kind:
    """Images, or texts, with what is public of those of the run. Raises ValueError for texts
    without a tokenizer.
    """
    if is_text(record.workload):
        if own(record.base.settings.workload) is not None:
            raise ValueError(
                f"workload {record.workload.name} is of your own, and names no tokenizer, by "
                "which texts are attacked: record a run of hf-text on these texts, or use "
                "--membership"
            )
        from fedlsg.simulations.attacks.texts_attack import Texts

        return Texts(record)
    return Images(record)


def check_of(threat: ThreatModel, options: Options) -> Check:
    """What is checked of a run before it is recorded, so that nothing is refused after that."""

    def check(base: Base) -> None:
        check_replayed(base)
        refuse_unseen(base.settings.trust, threat)
        kind = kind_of(Record(run=RunDir(Path()), base=base, payloads={}))
        if options.attacks is not None:
            kind.named(options.attacks)

    return check


def is_text(workload: LoadedWorkload) -> bool:
    """Whether the inputs are tokens."""
    inputs, _ = workload.test.batch(torch.tensor([0]))
    return isinstance(inputs, dict) and "input_ids" in inputs


def label(record: Record, records: Sequence[Record]) -> str:
    """The method, with what distinguishes runs of one method: rank, sparsity, sigma; else the
    directory's name.
    """
    method = record.base.settings.method
    same = [other for other in records if other.base.settings.method == method]
    known = {name: [_said(other, name) for other in same] for name in SPELT}
    told = [name for name in SPELT if len(set(known[name])) > 1]
    words = [", ".join([method, *(known[name][n] for name in told)]) for n in range(len(same))]
    mine = words[same.index(record)]
    return mine if words.count(mine) == 1 else f"{mine} ({record.run.path.name})"


def _said(record: Record, name: str) -> str:
    """A setting in a few words."""
    s = record.base.settings
    value = s.noise_multiplier if name == "noise_multiplier" else s.parameters.get(name)
    if name == "noise_multiplier" and not record.base.method.mechanism.adds_noise:
        return "no noise"
    return f"{SPELT[name]} {value:.3g}" if isinstance(value, int | float) else f"no {SPELT[name]}"


def show(findings: Sequence[Findings], console: Console, *, paired: bool = False) -> None:
    """The facts and the table of each run, and the verdict below them; then what the columns mean,
    and all runs.
    """
    alone = len(findings) == 1
    for one in findings:
        print_table(
            replace(one.table, title=one.label, note=one.table.note if alone else ""), console
        )
        for line in refusals(one):
            print_note(line, console)
        console.print(facts_shown(one.facts), highlight=False)
        print_line(one.verdict, console, "bold")
    if not alone:
        console.print()
        for note in dict.fromkeys(one.table.note for one in findings):
            print_note(note, console)
        print_table(replace(in_short(findings, paired=paired), title="All runs"), console)
