"""``fedlsg attack``: what does an adversary recover from recorded updates?

Results are shown next to blind guesses, which are made without the updates. This file is the
command. The parts are:

observations   what a run recorded
replayable     runs that the attacks cannot replay
privacy_facts  sigma and epsilon of an observed update, in words
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
from collections import Counter
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
from fedlsg.simulations.attacks.observations import Record, open_record
from fedlsg.simulations.attacks.question import question_of, words_of_each
from fedlsg.simulations.attacks.recording import Check, Recorded, record_all, record_like
from fedlsg.simulations.attacks.replayable import check_replayed, refuse_unseen
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
"""The first line of a page names no more runs than this; of more it has their number."""
IN_LABELS = {"rank": "rank", "sparsity": "sparsity", "noise_multiplier": "sigma"}
"""Settings that distinguish runs of one method in labels, and their words in labels."""


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
    """Attack runs, print the results, and write attack.json and attack.html.

    runs: directories of runs that recorded their updates.
    compare: methods with commas: in place of ``runs``, a short run of each is recorded.
    given: settings of the runs that are recorded.
    threat: what the adversary sees and knows.
    options: how runs are attacked.
    record: in place of each of ``runs``, a short run like it is recorded, with one example a batch.
    sparsities: numbers with commas; ``compare`` records a run for each.
    sigmas: numbers with commas; ``compare`` records a run for each.
    device: of the runs that are recorded.
    out: the folder of the page; None: see ``output_folder``.

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
        recorded = record_all(list(words(compare)), given, folder, console, device, check, **axes)
    elif record:
        check = check_of(threat, options)
        recorded = [
            record_like(
                run, given, folder / name, console, device, check, examples=options.examples
            )
            for run, name in with_folder_names(runs)
        ]
    else:
        recorded = [Recorded(path=run) for run in runs]
    with console.status("loading data") as status:
        records = [
            open_record(run.path, threat, whole_epsilon=run.epsilon, progress=status.update)
            for run in recorded
        ]
    if not record:
        for opened in records:
            warn_of_large_batches(opened, options, console)
    findings = attack_records(records, threat, options, console)
    names = f"{len(findings)} runs"
    if len(findings) <= MAX_NAMED_RUNS:
        names = " | ".join(run.label for run in findings)
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


def attack_records(
    records: Sequence[Record], threat: ThreatModel, options: Options, console: Console
) -> list[Findings]:
    """The findings of each run, with a progress bar."""
    findings = []
    # a closed form takes no time, and a search ends when it converges: progress is not even
    with bar(console, "attacking", even=False) as tick:
        for number, record in enumerate(records):

            def tick_part(share: float, text: str, number: int = number) -> None:
                tick((number + share) / len(records), text)

            of_run = attack_one(record, threat, options, tick_part)
            findings.append(replace(of_run, label=label(record, records)))
    return findings


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
    """The options of a command line. Raises ValueError for a number out of range.

    batches: sizes with commas; None: the smallest that a run has.
    images: about how many examples are attacked.

    The others are as in ``Options``.
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
    """Raise ValueError unless there are either runs, or methods to compare.

    Also for settings next to runs that are recorded already.
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


def with_folder_names(runs: Sequence[str]) -> list[tuple[str, str]]:
    """Each run, and the name of the folder for the short run like it."""
    if len(runs) == 1:
        return [(runs[0], "recorded")]
    pairs = []
    uses = Counter[str]()
    for run in runs:
        name = Path(run).expanduser().resolve().name
        uses[name] += 1
        pairs.append((run, name if uses[name] == 1 else f"{name}-{uses[name]}"))
    return pairs


def warn_of_large_batches(record: Record, options: Options, console: Console) -> None:
    """Print a warning with a remedy if even the smallest recorded batch is large."""
    if options.batches is not None or record.base.settings.trust != "client":
        return
    sizes = [size for of_round in batch_sizes(record).values() for size in of_round.values()]
    smallest = min((size for size in sizes if size), default=0)
    if smallest > LARGE_BATCH:
        print_line(
            f"{record.run.path.name}: the smallest recorded batch has {smallest} examples, which "
            "hide each other even without noise; --record records a short run like it with one "
            "example a batch, and attacks that",
            console,
            "yellow",
        )


def attack_one(record: Record, threat: ThreatModel, options: Options, tick: Tick) -> Findings:
    """The findings of one run, of images or texts.

    Raises ValueError for the name of an attack that does not exist for them.
    """
    return findings_of(attack_each(kind_of(record), record, threat, options, tick))


def kind_of(record: Record) -> Kind:
    """The attacks on images, or on texts, with the public examples of the run's workload.

    Raises ValueError for texts without a tokenizer.
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
    """A check of a run before it is recorded, so that no attack is refused after the recording."""

    def check(base: Base) -> None:
        check_replayed(base)
        refuse_unseen(base.settings.trust, threat)
        kind = kind_of(Record(run=RunDir(Path()), base=base, payloads={}))
        if options.attacks is not None:
            kind.named(options.attacks)

    return check


def is_text(workload: LoadedWorkload) -> bool:
    """Whether the inputs of a workload are tokens."""
    inputs, _ = workload.test.batch(torch.tensor([0]))
    return isinstance(inputs, dict) and "input_ids" in inputs


def label(record: Record, records: Sequence[Record]) -> str:
    """The method, and the settings by which runs of one method differ: rank, sparsity, sigma.

    If these settings are not enough, the name of the directory is added.
    """
    method = record.base.settings.method
    same_method = [other for other in records if other.base.settings.method == method]
    differing = [
        name for name in IN_LABELS if len({setting_words(other, name) for other in same_method}) > 1
    ]

    def short_label(other: Record) -> str:
        return ", ".join([method, *(setting_words(other, name) for name in differing)])

    short = short_label(record)
    is_unique = [short_label(other) for other in same_method].count(short) == 1
    return short if is_unique else f"{short} ({record.run.path.name})"


def setting_words(record: Record, name: str) -> str:
    """A setting of a run in a few words, such as "rank 8"."""
    settings = record.base.settings
    if name == "noise_multiplier":
        if not record.base.method.mechanism.adds_noise:
            return "no noise"
        value = settings.noise_multiplier
    else:
        value = settings.parameters.get(name)
    word = IN_LABELS[name]
    return f"{word} {value:.3g}" if isinstance(value, int | float) else f"no {word}"


def show(findings: Sequence[Findings], console: Console, *, paired: bool = False) -> None:
    """Print the table, the facts and the verdict of each run.

    For several runs, notes on the columns and a table of all runs follow. paired: whether they have
    the same examples.
    """
    is_single = len(findings) == 1
    for run in findings:
        note = run.table.note if is_single else ""
        print_table(replace(run.table, title=run.label, note=note), console)
        for line in refusals(run):
            print_note(line, console)
        console.print(facts_shown(run.facts), highlight=False)
        print_line(run.verdict, console, "bold")
    if not is_single:
        console.print()
        for note in dict.fromkeys(run.table.note for run in findings):
            print_note(note, console)
        print_table(replace(in_short(findings, paired=paired), title="All runs"), console)
