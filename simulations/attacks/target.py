"""The choice of recorded updates, the batches that made them, and all attacks on each of them.

``Kind`` has all that differs between images and texts. The batches (``Truth``) are for scores and
for what a threat model grants, never for attacks.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from fedlsg.attacks.membership.matched_filter import closed_form_tpr
from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation, ThreatModel
from fedlsg.attacks.recognition import Verdict
from fedlsg.config.choices import choose
from fedlsg.randomness import public_generator
from fedlsg.simulations.attacks.observations import Record
from fedlsg.simulations.attacks.privacy_facts import FPR
from fedlsg.simulations.report.pages.page import Gallery, TokenLines, Versions
from fedlsg.simulations.report.terminals.progress import Tick
from fedlsg.simulations.storage.atomic_files import load_array
from fedlsg.simulations.workloads.base.split import Inputs

SECONDS = 20.0
"""Default time limit of one attack on one update."""
ALL_SECONDS = 90.0
"""Default time limit of all attacks on small inputs together."""
MIN_SECONDS = 1.0
"""Each of these attacks has at least so much time."""
LARGE_BATCH = 8
"""More examples in one update hide each other, even without noise."""
NO_CLIENT = -1
"""In place of the client of a sum."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is attacked.

    batches: sizes of the updates that are attacked; None: the smallest that are recorded.
    examples: about how many are attacked, of each size in ``batches`` or in all.
    attacks: names with commas; None: the strongest that fit.
    naive: whether the strongest attacks are run in their naive form, too.
    seconds: of one attack on one update; None: see ``budget``.
    seed: of the starting points.
    device: of the matching attacks; closed forms are computed on the CPU.
    """

    batches: tuple[int, ...] | None
    examples: int
    attacks: str | None
    naive: bool
    seconds: float | None
    seed: int
    device: str = "cpu"

    def __post_init__(self) -> None:
        batches = (1,) if self.batches is None else self.batches
        seconds = 1.0 if self.seconds is None else self.seconds
        if not batches or min(batches) < 1 or self.examples < 1 or not seconds > 0:
            raise ValueError(
                f"expected --batch {','.join(map(str, batches))} of 1 or more, --images "
                f"{self.examples} >= 1 and --seconds {seconds} > 0"
            )

    def budget(self, attempts: int, *, small: bool) -> "Options":
        """These options with a time limit: ``seconds`` if it is set, else ``SECONDS``.

        All ``attempts`` on ``small`` inputs share ``ALL_SECONDS``.
        """
        if self.seconds is not None:
            return self
        if not small:
            return replace(self, seconds=SECONDS)
        share = ALL_SECONDS / max(attempts, 1)
        return replace(self, seconds=min(SECONDS, max(MIN_SECONDS, share)))


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack of ``fedlsg attack``.

    name: as ``--attacks`` takes it.
    run: ``run(observation, knowledge, prior, generator, seconds, progress, device)`` returns a
        guess on the CPU. It raises DoesNotApply for an observation that the attack cannot use.
    """

    name: str
    run: Callable[..., Guess]


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """The examples of one observation.

    rows: of the training split.
    inputs: of these rows.
    labels: of these rows.
    clients: that had these rows, one a row.
    """

    rows: Int64[Tensor, " batch"]
    inputs: Inputs
    labels: Shaped[Tensor, "batch *target"]
    clients: tuple[int, ...]

    def grant(self, threat: ThreatModel) -> Knowledge:
        """What the threat model lets the adversary know; labels are sorted, to hide their order."""
        if threat.labels == "known":
            columns = self.labels.flatten(1) if self.labels.ndim > 1 else self.labels.unsqueeze(1)
            order = np.lexsort(columns.numpy().T[::-1])  # the last key is the first column
            return Knowledge(labels=self.labels[torch.from_numpy(order)], examples=len(self.labels))
        return Knowledge(examples=len(self.labels) if threat.examples == "known" else None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """One update that is attacked, with its truth for scoring."""

    seen: Observation
    truth: Truth


def membership_of(observation: Observation) -> float | None:
    """The matched filter's TPR at 1 % FPR on this payload, from sigma alone.

    None without noise, and for several local steps.
    """
    if not observation.mechanism.private or observation.local.steps > 1:
        return None
    return closed_form_tpr(
        FPR,
        observation.noise_std / observation.mechanism.sensitivity(len(observation.frame.blocks)),
    )


def pick(record: Record, threat: ThreatModel, options: Options) -> list[Target]:
    """The recorded updates that are attacked, see ``choose_updates``.

    Raises ValueError if no update has a wanted size, or if all are of empty batches.
    """
    whole = threat.view == "aggregate"
    sizes: dict[tuple[int, int], int] = {}
    for number, size_of_client in batch_sizes(record).items():
        if whole:
            sizes[number, NO_CLIENT] = sum(size_of_client.values())
        else:
            sizes |= {(number, client): size for client, size in size_of_client.items()}
    targets: list[Target] = []
    for number, client in choose_updates(sizes, options):
        observation = (
            record.pick(number, threat)[0] if whole else record.observation(number, client)
        )
        targets.append(Target(seen=observation, truth=truth_of(record, observation)))
    if not targets and options.batches is None:
        raise ValueError(
            "every recorded update is of an empty batch: record a run with more rounds, or with "
            "--record"
        )
    if not targets:
        assert options.batches is not None
        wanted = " or ".join(map(str, options.batches))
        recorded = ", ".join(map(str, sorted(set(sizes.values()))))
        raise ValueError(
            f"no recorded {'sum' if whole else 'update'} holds {wanted} examples, there are "
            f"{'sums' if whole else 'updates'} of {recorded}: choose --batch among them"
            + ("" if whole else f", or record a run with -c batch_size={options.batches[0]}")
        )
    return targets


def choose_updates(sizes: Mapping[tuple[int, int], int], options: Options) -> list[tuple[int, int]]:
    """Which updates are attacked, from their sizes by (round, client).

    The first ones of each wanted size, with about ``options.examples`` examples of each. Without
    wanted sizes the smallest updates that hold an example, with about so many examples in all.
    """
    by_size = sorted((size, update) for update, size in sizes.items() if size)
    chosen: list[tuple[int, int]] = []
    if options.batches is None:
        examples = 0
        for size, update in by_size:
            if examples < options.examples:
                chosen.append(update)
            examples += size
        return chosen
    for batch in options.batches:
        of_size = [update for size, update in by_size if size == batch]
        chosen += of_size[: max(1, round(options.examples / batch))]
    return chosen


def truth_of(record: Record, observation: Observation) -> Truth:
    """The batches of an observation's clients, one after the other.

    Raises ValueError if the run kept no batches: then nothing can be scored.
    """
    each = {client: rows_of(record, observation.round, client) for client in observation.clients}
    rows = torch.cat(list(each.values()))
    inputs, labels = record.workload.train.batch(rows)
    clients = tuple(client for client, batch in each.items() for _ in batch)
    return Truth(rows=rows, inputs=inputs, labels=labels, clients=clients)


def batch_sizes(record: Record) -> dict[int, dict[int, int]]:
    """Examples in each recorded payload, by round and client."""
    return {
        round: {client: len(rows_of(record, round, client)) for client in clients}
        for round, clients in record.payloads.items()
    }


def rows_of(record: Record, round: int, client: int) -> Int64[Tensor, " batch"]:
    """The batch of one recorded payload. Raises ValueError for a missing or damaged file."""
    path = record.run.path / "updates-truth" / f"round-{round:06d}" / f"client-{client:06d}.npy"
    try:
        rows = torch.from_numpy(load_array(path))
    except FileNotFoundError:
        raise ValueError(
            f"{path} is missing: without the batches an attack cannot be scored"
        ) from None
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if (
        rows.is_floating_point()
        or rows.ndim != 1
        or not bool(torch.isin(rows, record.base.parts[client]).all())
    ):
        raise ValueError(
            f"{path} names rows that client {client} does not hold: it belongs to other data or "
            "settings"
        )
    return rows.long()


class Kind(ABC):
    """Attacks on the images, or on the texts, of one run.

    outcome: the class of ``findings.Outcome``.
    original: the word for one example.
    known: all attacks, by name.
    small: whether the inputs are small, so that all attempts share ``ALL_SECONDS``.
    """

    outcome: ClassVar[Any]
    original: ClassVar[str]
    known: ClassVar[Mapping[str, Attack]]
    small: bool = False

    def named(self, names: str) -> list[Attack]:
        """Attacks from a list with commas. Raises ValueError naming the known ones."""
        return [choose("attack", name.strip(), self.known) for name in names.split(",")]

    @abstractmethod
    def guessed(self, threat: ThreatModel) -> str:
        """What the blind guess of an example is, and what it is granted, in words."""

    @abstractmethod
    def attacks(self, seen: Observation, known: Knowledge, options: Options) -> Sequence[Attack]:
        """The attacks that the options name, or the strongest that may work.

        Raises ValueError for an unknown name.
        """

    @abstractmethod
    def task(
        self, target: Target, known: Knowledge, examples: int
    ) -> tuple[Any, Any, Callable[[str, Guess, float], Any]]:
        """The prior, the blind guess, and a function for scores.

        The function takes the name of an attack, its guess and its seconds. ``examples``: originals
        of all targets, each of which gets a verdict.
        """

    @abstractmethod
    def describe(self, found: "Results") -> tuple[dict[str, str], dict[str, Any]]:
        """Facts about the attacked updates, by name: for people, and for attack.json."""

    @abstractmethod
    def shown(self, found: "Results", order: Sequence[str]) -> Gallery | TokenLines:
        """Recovered examples for the page, of the attacks in this order."""

    @abstractmethod
    def compared(
        self, found: "Results", sides: Mapping[str, Sequence[Sequence["Reading"]]]
    ) -> Versions | TokenLines:
        """Recovered examples of each side, next to the originals of ``found``.

        sides: readings by name of the side, target and example; the examples are the same.
        """

    @abstractmethod
    def numbers(self, target: Target, blind: Any, scores: Sequence[Any]) -> dict[str, Any]:
        """The numbers of one target for attack.json."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """The result for one example over all attacks.

    score: of the attack whose guess is shown; None if no attack applies.
    verdict: over all attacks.
    """

    score: Any
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """Results of all attacks on one run.

    kind: attacks on images, or on texts.
    record: of the run.
    threat: what the adversary sees and knows.
    targets: the attacked updates.
    blind: the blind guess by target.
    results: the score of each attack by target.
    refused: why an attack did not apply, by its name.
    membership: TPR at 1 % FPR of one payload for an example that is clipped, by the closed form;
        None without noise and for several local steps.
    seconds: of one attempt, at most.
    """

    kind: Kind
    record: Record
    threat: ThreatModel
    targets: tuple[Target, ...]
    blind: tuple[Any, ...]
    results: tuple[tuple[Any, ...], ...]
    refused: dict[str, str]
    membership: float | None
    seconds: float


def attack_each(
    kind: Kind, record: Record, threat: ThreatModel, options: Options, tick: Tick
) -> Results:
    """Run the chosen attacks on the chosen updates.

    Raises ValueError for an unknown attack, and where no recorded update has a wanted batch.
    """
    targets = pick(record, threat, options)
    known = [target.truth.grant(threat) for target in targets]
    chosen = [
        kind.attacks(target.seen, knowledge, options)
        for target, knowledge in zip(targets, known, strict=True)
    ]
    options = options.budget(sum(map(len, chosen)), small=kind.small)
    examples = sum(len(target.truth.rows) for target in targets)
    results, blinds = [], []
    refused: dict[str, str] = {}
    for number, (target, knowledge, attacks) in enumerate(zip(targets, known, chosen, strict=True)):
        prior, blind, score = kind.task(target, knowledge, examples)
        scores = []
        for place, attack in enumerate(attacks):
            tick_attack = partial(
                _report_progress, tick, (number, len(targets)), (place, len(attacks)), attack.name
            )
            generator = public_generator(options.seed, "attack", number, attack.name)
            try:
                guess, seconds = attempt(
                    attack, target, knowledge, prior, generator, options, tick_attack
                )
                scores.append(score(attack.name, guess, seconds))
            except DoesNotApply as error:
                refused[attack.name] = str(error)
        results.append(tuple(scores))
        blinds.append(blind)
    tick(1.0, "done")
    return Results(
        kind=kind,
        record=record,
        threat=threat,
        targets=tuple(targets),
        blind=tuple(blinds),
        results=tuple(results),
        refused=refused,
        membership=membership_of(targets[0].seen),
        seconds=options.seconds or 0.0,
    )


def _report_progress(
    tick: Tick, update: tuple[int, int], attack: tuple[int, int], name: str, share: float, text: str
) -> None:
    """Report the progress of one attack as that of all attacks.

    update: the number of the update, and how many there are.
    attack: the number of the attack on it, and how many there are.
    """
    (number, targets), (place, attacks) = update, attack
    tick(
        (number + (place + share) / attacks) / targets,
        f"update {number + 1} of {targets}, {name}{text}",
    )


def attempt(
    attack: Attack,
    target: Target,
    known: Knowledge,
    prior: Any,
    generator: torch.Generator,
    options: Options,
    tick: Tick,
) -> tuple[Guess, float]:
    """The guess of an attack, and the seconds that it took.

    Raises DoesNotApply for an observation that the attack cannot use.
    """
    started = time.monotonic()

    def progress(step: int, total: int, text: str) -> None:
        # the search ends with its steps or its time, so that the larger share counts
        time_share = (time.monotonic() - started) / (options.seconds or math.inf)
        tick(min(max(step / max(total, 1), time_share), 1.0), f": {text}")

    tick(0.0, "")
    guess = attack.run(
        target.seen, known, prior, generator, options.seconds, progress, options.device
    )
    return guess, time.monotonic() - started
