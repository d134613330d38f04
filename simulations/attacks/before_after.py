"""``fedlsg attack --against``: what a server sees of the very same examples under two settings.

Two runs are recorded for it (``recording.record_pair``). Before anything is attacked they are
compared: the same clients, rows, weights and examples, or ValueError. Attacks have the same seed
and the same seconds on both.
"""

import time
from collections.abc import Mapping, Sequence
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
from fedlsg.simulations.attacks.observations import (
    FPR,
    TWO_QUESTIONS,
    Record,
    open_record,
    refuse_unseen,
    sigma_of,
)
from fedlsg.simulations.attacks.question import question_of, words_of_each
from fedlsg.simulations.attacks.recording import of_sigma, record_pair, words_of
from fedlsg.simulations.attacks.target import Kind, Options, Results, attack_each, rows_of
from fedlsg.simulations.report.pages.page import Badge, Text
from fedlsg.simulations.report.terminals.progress import bar
from fedlsg.simulations.report.terminals.terminal import checked, print_line, print_written
from fedlsg.simulations.settings.any_run import Device
from fedlsg.simulations.settings.settings import parse, values_of
from fedlsg.simulations.storage.examined import RESULTS
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads.base.split import Inputs

MADE = (
    "Both runs were recorded for this page, for one round. Their batches and their noise follow "
    "from the seed, so that both have the same examples and anybody can repeat them: such a run "
    "claims no epsilon of its own."
)


NOISES = {True: "with noise", False: "without noise"}
CLIPS = {True: "with a clip", False: "without a clip"}
"""Names of sides of which one has noise, or a clip."""


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
    """Record and attack a run, or ``given`` settings, and the same with ``against`` in their place;
    print, write before-after.json and before-after.html, or before-after-2 and so on.

    Where the server of one side sees only a sum, the sums of both are attacked. Raises ValueError
    for more than one run, for settings that change nothing, for settings that change which examples
    or weights are attacked, and for single payloads that nobody sees, if ``view_given`` asks for
    them.
    """
    if len(runs) > 1:
        raise ValueError(f"--against compares one run with itself: give one RUN, not {len(runs)}")
    folder, asked = output_folder(runs, out), without_zero(against)
    summed = threat if view_given else replace(threat, view="aggregate")
    trust = "client"
    for path in runs:
        settings = checked(path, RESULTS, console).read_config()
        trust = settings.trust
    refuse_unseen(given.get("trust", trust), summed)
    pair = record_pair(
        runs[0] if runs else None,
        given,
        asked,
        folder / "before-after",
        console,
        device,
        check_of(summed, options),
        examples=options.examples,
    )
    if any(RunDir.open(one.path).read_config().trust != "client" for one in pair):
        threat = summed  # nobody sees one payload of such a run
    with console.status("loading data") as status:
        before, after = (
            open_record(one.path, threat, whole_epsilon=one.epsilon, progress=status.update)
            for one in pair
        )
    check_alike(before, after, against)
    kind, names = kind_of(after), side_names(before, after, asked)
    with bar(console, "attacking", even=False) as tick:
        # first the run itself, which fewer attacks fit: its seconds for each attack hold for both
        last = attack_each(kind, after, threat, options, lambda share, text: tick(share / 2, text))
        same = replace(options, seconds=last.seconds)
        first = attack_each(
            kind, before, threat, same, lambda share, text: tick(0.5 + share / 2, text)
        )
    sides = dict(zip(names, (first, last), strict=True))
    findings = [replace(findings_of(side), label=name) for name, side in sides.items()]
    read = {name: read_each(side) for name, side in sides.items()}
    verdicts = {name: [one.verdict for some in each for one in some] for name, each in read.items()}
    told = Pair(
        headline=headline(kind.original, verdicts),
        badge=outcome(kind.original, names[1], verdicts[names[1]], last.membership),
        parts=(
            Text(words=caption(kind, sides)),
            kind.compared(last, read),
            *(
                [Text(words=f"{known_batch(names[1], last.membership)} {TWO_QUESTIONS}")]
                if last.membership is not None
                else []
            ),
            Text(words=MADE, style="note"),
        ),
        numbers={
            "against": dict(against),
            "verdicts": verdicts,
            "updates": [update_numbers(target) for target in last.targets],
        },
    )
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
    files = write(folder, findings, threat, question=question, lead=lead, pair=told)
    show(findings, console, paired=True)
    print_line(told.headline, console, "bold")
    print_written(folder, files, console)


def without_zero(against: Mapping[str, Any]) -> dict[str, Any]:
    """A sigma of 0 as what it means, a run that clips and adds no noise."""
    settings = dict(against)
    if str(settings.get("noise_multiplier")) in ("0", "0.0"):
        del settings["noise_multiplier"]
        settings |= of_sigma(0.0)
    return settings


def check_alike(before: Record, after: Record, against: Mapping[str, Any]) -> None:
    """Raise ValueError unless two records are of the same clients, weights, rows and examples,
    round by round.
    """
    for what, same in (
        ("clients", lambda: places(before) == places(after)),
        ("weights", lambda: all(equal_weights(before, after, n) for n in after.payloads)),
        ("rows", lambda: all(equal_rows(before, after, *at) for at in places(after))),
        ("examples", lambda: all(equal_inputs(before, after, *at) for at in places(after))),
    ):
        if not same():
            raise ValueError(
                f"--against {words_of(against)}: the two runs do not have the same {what}, so that "
                "nothing could be compared: name settings of what is sent, such as mechanism, "
                "noise_multiplier, clip_norm, method, rank or sparsity"
            )


def places(record: Record) -> list[tuple[int, int]]:
    """Round and client of each recorded payload."""
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
    (inputs, labels), (other, others) = (r.workload.train.batch(rows) for r in (before, after))
    return (
        torch.equal(labels, others)
        and flat(inputs).keys() == flat(other).keys()
        and all(torch.equal(value, flat(other)[name]) for name, value in flat(inputs).items())
    )


def flat(inputs: Inputs) -> dict[str, Tensor]:
    """Inputs by name; a single tensor has none."""
    return dict(inputs) if isinstance(inputs, Mapping) else {"": inputs}


def side_names(before: Record, after: Record, against: Mapping[str, Any]) -> tuple[str, str]:
    """What distinguishes the sides, in words that always differ: noise or a clip, if one has none,
    else the named settings.
    """
    first, last = (side.base.method.mechanism for side in (before, after))
    if first.adds_noise != last.adds_noise:
        return NOISES[first.adds_noise], NOISES[last.adds_noise]
    if first.clips != last.clips:
        return CLIPS[first.clips], CLIPS[last.clips]
    settings = {**values_of(after.base.settings), "epsilon": after.whole_epsilon}
    asked = parse(against)
    named, kept = plain(asked), plain({name: settings.get(name) for name in asked})
    return f"with {named}", "as the run is" if kept in ("", named) else f"with {kept}"


def plain(settings: Mapping[str, Any]) -> str:
    """Settings with a value, in words for readers who know no settings."""
    words = (
        f"{name.replace('_', ' ')} {value:.3g}"
        if isinstance(value, float)
        else f"{name.replace('_', ' ')} {value}"
        for name, value in settings.items()
        if value is not None
    )
    return ", ".join(words)


def caption(kind: Kind, sides: Mapping[str, Results]) -> str:
    """What the page shows, for readers who know no method."""
    first, last = (seen(name, side) for name, side in sides.items())
    results = next(iter(sides.values()))
    clients = max(len(target.seen.clients) for target in results.targets)
    update = "the client's update" if clients == 1 else f"the sum of {clients} clients' updates"
    several = max(len(target.truth.rows) for target in results.targets) > 1
    paired = " Guesses are paired with the originals that they are nearest to." if several else ""
    return (
        f"Each original is a {kind.original} that only a client has. The blind guess uses no "
        f"update: it is {kind.guessed(results.threat)}. Then comes what the server reads in "
        f"{update} {first}, and in the same "
        f"{'update' if clients == 1 else 'sum'} {last}.{paired}"
    )


def seen(name: str, side: Results) -> str:
    """A side in a sentence, with its noise."""
    observed, epsilon = side.targets[0].seen, side.record.whole_epsilon
    noise = "without noise" if observed.mechanism.clips else "without noise and without a clip"
    if observed.mechanism.adds_noise:
        budget = "" if epsilon is None else f" of epsilon {epsilon:.3g} over the whole run,"
        where = "" if len(observed.clients) == 1 else " in the sum"
        noise = f"with noise{budget} of sigma {sigma_of(observed):.3g}{where}"
    known = name in NOISES.values() or f"of {name.removeprefix('with ')} over" in noise
    return noise if known else f"{name}, {noise}"


KNOWN = 0.05
"""A rate of members of a known batch, at 1 % false alarms, from which a badge is not green."""


def outcome(
    original: str, name: str, verdicts: Sequence[Verdict], membership: float | None
) -> tuple[str, Badge]:
    """What is true of the run itself, in a few words: of its originals, and of who was in a batch.

    membership: as ``Results`` has it.
    """
    also = "" if membership is None else f"; membership in a known batch: {membership:.0%}"
    if not set(LEAKS).isdisjoint(verdicts):
        return f"{name}: {original}s recognised{also}", "bad"
    if "undecided" in verdicts:
        return f"{name}: {original}s undecided{also}", "limited"
    badge: Badge = "limited" if membership is not None and membership >= KNOWN else "good"
    return f"{name}: no {original} recognised{also}", badge


def known_batch(name: str, membership: float) -> str:
    """The rate at which members of one known batch are found, in a sentence."""
    return (
        f"{name[:1].upper()}{name[1:]}, an attacker recognises {membership:.1%} of the examples "
        f"that are known to be in this batch or nowhere, at {FPR:.0%} false alarms."
    )


def headline(original: str, verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """How many originals each side gives away."""
    sentences = []
    for name, each in verdicts.items():
        open_ones = each.count("undecided")
        rest = f", {open_ones} undecided" if open_ones else ""
        sentences.append(f"{name}, {sum(map(each.count, LEAKS))} of {len(each)}{rest}")
    words = f"{original}s that the server recognises: {'; '.join(sentences)}."
    return words[:1].upper() + words[1:]
