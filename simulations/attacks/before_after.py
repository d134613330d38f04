"""``fedlsg attack --against``: attacks on the very same examples under two settings.

Two runs are recorded for it (``recording.record_pair``). Unless they have the same clients, rows,
weights and examples, a ValueError is raised before any attack. Attacks have the same seed and the
same seconds on both.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from fedlsg.attacks.observation import ThreatModel
from fedlsg.attacks.recognition import LEAKS, Verdict
from fedlsg.simulations.attacks import check_of, kind_of, show
from fedlsg.simulations.attacks.attack_page import Pair, output_folder, write
from fedlsg.simulations.attacks.findings import findings_of, read_each, update_numbers
from fedlsg.simulations.attacks.observations import Record, open_record
from fedlsg.simulations.attacks.privacy_facts import FPR, TWO_QUESTIONS, sigma_of
from fedlsg.simulations.attacks.question import question_of, words_of_each
from fedlsg.simulations.attacks.recording import noise_settings, record_pair, words_of
from fedlsg.simulations.attacks.replayable import refuse_unseen
from fedlsg.simulations.attacks.target import Kind, Options, Results, attack_each, rows_of
from fedlsg.simulations.report.pages.page import Badge, Part, Text
from fedlsg.simulations.report.terminals.progress import bar
from fedlsg.simulations.report.terminals.terminal import checked, print_line, print_written
from fedlsg.simulations.settings.any_run import Device
from fedlsg.simulations.settings.settings import parse, values_of
from fedlsg.simulations.storage.examined import RESULTS
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads.base.split import Inputs

HOW_RECORDED = (
    "Both runs were recorded for this page, for one round. Their batches and their noise follow "
    "from the seed, so that both have the same examples and anybody can repeat them: such a run "
    "claims no epsilon of its own."
)
"""The last note on the page."""
NOISE_WORDS = {True: "with noise", False: "without noise"}
"""Names of sides if one of them has noise and the other has none."""
CLIP_WORDS = {True: "with a clip", False: "without a clip"}
"""Names of sides if one of them clips and the other does not."""


def before_after_command(
    runs: Sequence[str],
    console: Console,
    *,
    given: Mapping[str, Any],
    against: Mapping[str, Any],
    threat: ThreatModel,
    view_given: bool = False,
    options: Options,
    device: Device,
    out: str | None,
) -> None:
    """Record and attack two runs that differ in ``against``; print, and write the page.

    runs: at most one, whose settings both runs have.
    given: settings of both in place of the run's, or of the defaults.
    against: settings of the run that comes first on the page.
    threat: what the adversary sees and knows.
    view_given: whether the user chose ``threat.view``. If not, sums are attacked when the server of
        one side sees only a sum.
    options: of the attacks.
    device: of the recorded runs.
    out: folder of before-after.html and before-after.json, or of before-after-2 and so on.

    Raises ValueError for more than one run, for settings that change nothing or that change which
    examples or weights are attacked, and for a chosen view of single payloads that nobody sees.
    """
    if len(runs) > 1:
        raise ValueError(f"--against compares one run with itself: give one RUN, not {len(runs)}")
    run = runs[0] if runs else None
    folder = output_folder(runs, out)
    changes = replace_zero_sigma(against)
    # a view that the user did not choose may become that of the sum: so it cannot be refused
    lenient = threat if view_given else replace(threat, view="aggregate")
    trust = "client" if run is None else checked(run, RESULTS, console).read_config().trust
    refuse_unseen(given.get("trust", trust), lenient)
    pair = record_pair(
        run,
        given,
        changes,
        folder / "before-after",
        console,
        device,
        check_of(lenient, options),
        examples=options.examples,
    )
    if any(RunDir.open(recorded.path).read_config().trust != "client" for recorded in pair):
        threat = lenient  # nobody sees one payload of such a run
    with console.status("loading data") as status:
        before, after = (
            open_record(
                recorded.path, threat, whole_epsilon=recorded.epsilon, progress=status.update
            )
            for recorded in pair
        )
    check_alike(before, after, against)
    kind, names = kind_of(after), side_names(before, after, changes)
    with bar(console, "attacking", even=False) as tick:
        # the run itself first, because fewer attacks fit it: both have its seconds for each attack
        last = attack_each(kind, after, threat, options, lambda share, text: tick(share / 2, text))
        same = replace(options, seconds=last.seconds)
        first = attack_each(
            kind, before, threat, same, lambda share, text: tick(0.5 + share / 2, text)
        )
    sides = dict(zip(names, (first, last), strict=True))
    findings = [replace(findings_of(side), label=name) for name, side in sides.items()]
    pair_on_page = compare_sides(kind, sides, against)
    lead = f"{after.base.settings.method}; the other run has {words_of(against)}"
    lead = f"{lead}; {time.strftime('%Y-%m-%d')}; seed {options.seed}"
    question = question_of(
        runs,
        folder,
        threat,
        options,
        given=words_of_each(given),
        against=words_of_each(against),
    )
    files = write(folder, findings, threat, question=question, lead=lead, pair=pair_on_page)
    show(findings, console, paired=True)
    print_line(pair_on_page.headline, console, "bold")
    print_written(folder, files, console)


def compare_sides(kind: Kind, sides: Mapping[str, Results], against: Mapping[str, Any]) -> Pair:
    """The part of the page about both runs. sides: results by name, the run itself last."""
    *_, name = sides
    last = sides[name]
    readings = {name: read_each(side) for name, side in sides.items()}
    verdicts = {
        name: [reading.verdict for of_target in targets for reading in of_target]
        for name, targets in readings.items()
    }
    parts: list[Part] = [Text(words=caption(kind, sides)), kind.compared(last, readings)]
    if last.membership is not None:
        parts.append(Text(words=f"{membership_words(name, last.membership)} {TWO_QUESTIONS}"))
    return Pair(
        headline=headline(kind.original, verdicts),
        badge=outcome_of_run(kind.original, name, verdicts[name], last.membership),
        parts=(*parts, Text(words=HOW_RECORDED, style="note")),
        numbers={
            "against": dict(against),
            "verdicts": verdicts,
            "updates": [update_numbers(target) for target in last.targets],
        },
    )


def replace_zero_sigma(against: Mapping[str, Any]) -> dict[str, Any]:
    """These settings, in which a sigma of 0 becomes the mechanism that clips and adds no noise."""
    settings = dict(against)
    if str(settings.get("noise_multiplier")) in ("0", "0.0"):
        del settings["noise_multiplier"]
        settings |= noise_settings(0.0)
    return settings


def check_alike(before: Record, after: Record, against: Mapping[str, Any]) -> None:
    """Raise ValueError unless two records have the same clients, weights, rows and examples.

    All are compared round by round. Later comparisons need the earlier ones, so that each is made
    only if the one before succeeded.
    """
    updates = updates_in(after)
    comparisons: dict[str, Callable[[], bool]] = {
        "clients": lambda: updates_in(before) == updates,
        "weights": lambda: all(equal_weights(before, after, round) for round in after.payloads),
        "rows": lambda: all(equal_rows(before, after, *update) for update in updates),
        "examples": lambda: all(equal_inputs(before, after, *update) for update in updates),
    }
    for what, are_equal in comparisons.items():
        if not are_equal():
            raise ValueError(
                f"--against {words_of(against)}: the two runs do not have the same {what}, so that "
                "nothing could be compared: name settings of what is sent, such as mechanism, "
                "noise_multiplier, clip_norm, method, rank or sparsity"
            )


def updates_in(record: Record) -> list[tuple[int, int]]:
    """Round and client of each recorded payload, in order."""
    return sorted(
        (number, client) for number, clients in record.payloads.items() for client in clients
    )


def equal_weights(before: Record, after: Record, number: int) -> bool:
    """Whether the public models of a round are equal, bit for bit."""
    weights, other = before.model_of(number).state_dict(), after.model_of(number).state_dict()
    return weights.keys() == other.keys() and all(
        torch.equal(weights[name], other[name]) for name in weights
    )


def equal_rows(before: Record, after: Record, number: int, client: int) -> bool:
    """Whether a client drew the same batch."""
    return torch.equal(rows_of(before, number, client), rows_of(after, number, client))


def equal_inputs(before: Record, after: Record, number: int, client: int) -> bool:
    """Whether the rows of a batch hold the same inputs and labels."""
    rows = rows_of(after, number, client)
    inputs, labels = before.workload.train.batch(rows)
    other_inputs, other_labels = after.workload.train.batch(rows)
    tensors, others = by_name(inputs), by_name(other_inputs)
    return (
        torch.equal(labels, other_labels)
        and tensors.keys() == others.keys()
        and all(torch.equal(value, others[name]) for name, value in tensors.items())
    )


def by_name(inputs: Inputs) -> dict[str, Tensor]:
    """Inputs by name; a single tensor has the empty name."""
    return dict(inputs) if isinstance(inputs, Mapping) else {"": inputs}


def side_names(before: Record, after: Record, against: Mapping[str, Any]) -> tuple[str, str]:
    """Names of the two sides, which always differ.

    They are about noise if one side has none, else about a clip if one has none, else about the
    settings in ``against``.
    """
    first, last = before.base.method.mechanism, after.base.method.mechanism
    if first.adds_noise != last.adds_noise:
        return NOISE_WORDS[first.adds_noise], NOISE_WORDS[last.adds_noise]
    if first.clips != last.clips:
        return CLIP_WORDS[first.clips], CLIP_WORDS[last.clips]
    settings = {**values_of(after.base.settings), "epsilon": after.whole_epsilon}
    changes = parse(against)
    changed = plain_words(changes)
    kept = plain_words({name: settings.get(name) for name in changes})
    return f"with {changed}", "as the run is" if kept in ("", changed) else f"with {kept}"


def plain_words(settings: Mapping[str, Any]) -> str:
    """Settings with a value, in words for readers who know no settings."""
    words = []
    for name, value in settings.items():
        if value is not None:
            number = f"{value:.3g}" if isinstance(value, float) else str(value)
            words.append(f"{name.replace('_', ' ')} {number}")
    return ", ".join(words)


def caption(kind: Kind, sides: Mapping[str, Results]) -> str:
    """The words above the examples, for readers who know no method."""
    first, last = (side_words(name, side) for name, side in sides.items())
    results = next(iter(sides.values()))
    clients = max(len(target.seen.clients) for target in results.targets)
    update = "the client's update" if clients == 1 else f"the sum of {clients} clients' updates"
    several = any(len(target.truth.rows) > 1 for target in results.targets)
    paired = " Guesses are paired with the originals that they are nearest to." if several else ""
    return (
        f"Each original is a {kind.original} that only a client has. The blind guess uses no "
        f"update: it is {kind.guessed(results.threat)}. Then comes what the server reads in "
        f"{update} {first}, and in the same "
        f"{'update' if clients == 1 else 'sum'} {last}.{paired}"
    )


def side_words(name: str, side: Results) -> str:
    """The name of a side and its noise, as part of a sentence."""
    observed, epsilon = side.targets[0].seen, side.record.whole_epsilon
    noise = "without noise" if observed.mechanism.clips else "without noise and without a clip"
    if observed.mechanism.adds_noise:
        budget = "" if epsilon is None else f" of epsilon {epsilon:.3g} over the whole run,"
        where = "" if len(observed.clients) == 1 else " in the sum"
        noise = f"with noise{budget} of sigma {sigma_of(observed):.3g}{where}"
    repeats = name in NOISE_WORDS.values() or f"of {name.removeprefix('with ')} over" in noise
    return noise if repeats else f"{name}, {noise}"


RECOGNISED_RATE = 0.05
"""A badge is not green if more members of a known batch are recognised, at 1 % false alarms."""


def outcome_of_run(
    original: str, name: str, verdicts: Sequence[Verdict], membership: float | None
) -> tuple[str, Badge]:
    """The result for the run itself in a few words: its originals, and membership in one batch.

    original: the word for an example.
    name: of the side.
    verdicts: one an example.
    membership: as ``Results.membership``.
    """
    also = "" if membership is None else f"; membership in a known batch: {membership:.0%}"
    if not set(LEAKS).isdisjoint(verdicts):
        return f"{name}: {original}s recognised{also}", "bad"
    if "undecided" in verdicts:
        return f"{name}: {original}s undecided{also}", "limited"
    badge: Badge = "limited" if membership is not None and membership >= RECOGNISED_RATE else "good"
    return f"{name}: no {original} recognised{also}", badge


def membership_words(name: str, membership: float) -> str:
    """The rate at which members of one known batch are recognised, in a sentence."""
    return (
        f"{name[:1].upper()}{name[1:]}, an attacker recognises {membership:.1%} of the examples "
        f"that are known to be in this batch or nowhere, at {FPR:.0%} false alarms."
    )


def headline(original: str, verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """How many originals are recognised on each side, in a sentence."""
    sentences = []
    for name, each in verdicts.items():
        undecided = each.count("undecided")
        rest = f", {undecided} undecided" if undecided else ""
        sentences.append(f"{name}, {sum(map(each.count, LEAKS))} of {len(each)}{rest}")
    words = f"{original}s that the server recognises: {'; '.join(sentences)}."
    return words[:1].upper() + words[1:]
