"""The training mode of ``fedlsg audit``: a run on the local engine with canary examples, in a
folder that is deleted.

Clients, wire and server are those of a run, and the audit reads what it recorded. A canary is in
the data of its client with probability 1/2, in secret. The other examples, their clients, the
divisor and the noise do not depend on which canaries are in.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from rich.console import Console
from torch import Tensor

from fedlsg.attacks.audit.checks.check import Check
from fedlsg.attacks.audit.played.coverage import counted
from fedlsg.attacks.audit.played.plants import planted
from fedlsg.attacks.audit.training_mode import Payload, canary_scores, examine, payload_checks
from fedlsg.attacks.audit.verdict import Verdict, judge
from fedlsg.attacks.observation import ThreatModel
from fedlsg.randomness import SecretStream, public_generator, reproducible_stream, secret_stream
from fedlsg.simulations.attacks.audit import Audited
from fedlsg.simulations.attacks.observations import Record, open_record
from fedlsg.simulations.inspection import run_in_scratch
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.report.terminals.progress import count_bar
from fedlsg.simulations.server.divergence import refuse_diverged
from fedlsg.simulations.server.ready import ready_plan
from fedlsg.simulations.settings.rule_checker import refuse_shuffled
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.workloads.base.split import Inputs, Split, Stored
from fedlsg.training import Positions

Images = Float[Tensor, "m *shape"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Inserted:
    """Rows of the training split that are canaries, ascending, the client of each, and whether it
    is included.
    """

    rows: Positions
    clients: Positions
    included: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Numbered:
    """Stored examples that come with their rows."""

    stored: Stored

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(
        self, rows: Int64[np.ndarray, " b"], /
    ) -> tuple[Int64[np.ndarray, " b"], object]:
        return rows, self.stored[rows]


def two_tone(images: Images, generator: torch.Generator) -> Images:
    """Every value at either end of these images' range, with probability 1/2."""
    return torch.where(
        torch.rand(images.shape, generator=generator) < 0.5, images.min(), images.max()
    )


KINDS = ("mislabelled", "two-tone")


def choose_canaries(plan: Plan, count: int, seed: int | None) -> Inserted:
    """Canaries drawn from all training examples, and which of them are included."""
    bits: SecretStream = (
        secret_stream() if seed is None else reproducible_stream(seed, "audit", "coins")
    )
    generator = public_generator(plan.settings.seed, "audit", "canaries")
    rows = torch.randperm(len(plan.workload.train), generator=generator)[:count].sort().values
    owner = torch.zeros(len(plan.workload.train), dtype=torch.int64)
    for client, part in enumerate(plan.parts):
        owner[part] = client
    return Inserted(rows=rows, clients=owner[rows], included=bits.bernoulli(count, 0.5))


def strongest(train: Split) -> str:
    """Two-tone images, which were as easy to distinguish as any in measurements; else wrong
    labels.
    """
    return (
        "two-tone"
        if images_of(train, torch.zeros(1, dtype=torch.int64)) is not None
        else "mislabelled"
    )


def images_of(train: Split, rows: Positions) -> Images | None:
    """The images in these rows, None where inputs are no images."""
    inputs = train.batch(rows)[0]
    return inputs if isinstance(inputs, Tensor) and inputs.ndim == 4 else None


def with_canaries(plan: Plan, inserted: Inserted, kind: str) -> Plan:
    """The plan whose training split holds the canaries, and those that are out taken from their
    clients.

    ``mislabelled``: the label moved to another class. ``two-tone``: another image, with any label.
    Raises ValueError for images where there are none, and for a client that has nothing left.
    """
    train = plan.workload.train
    generator = public_generator(plan.settings.seed, "audit", "labels")
    labels, count = train.labels.clone(), len(inserted.rows)
    least = 1 if kind == "mislabelled" else 0
    classes = plan.workload.classes("an audit of whole runs")
    shift = torch.randint(least, classes, (count,), generator=generator)
    labels[inserted.rows] = (labels[inserted.rows] + shift) % classes
    train = replace(train, labels=labels)
    if kind != "mislabelled":
        images = images_of(train, inserted.rows)
        if images is None:
            raise ValueError(
                f"canaries of kind {kind!r} are images: take mislabelled for {plan.workload.name}"
            )
        train = replaced(train, inserted.rows, two_tone(images, generator))
    out = inserted.rows[~inserted.included]
    parts = [part[~torch.isin(part, out)] for part in plan.parts]
    if any(not len(part) for part in parts):
        raise ValueError("a client has no example left: take fewer --canaries or fewer clients")
    terms = [replace(t, num_examples=len(part)) for t, part in zip(plan.terms, parts, strict=True)]
    return replace(
        plan, workload=replace(plan.workload, train=train), parts=parts, terms=tuple(terms)
    )


def replaced(split: Split, rows: Positions, images: Images) -> Split:
    """The split with these prepared images in place of its own in ``rows``."""
    place = torch.full((len(split),), -1)
    place[rows] = torch.arange(len(rows))

    def prepare(numbered: tuple[Int64[np.ndarray, " b"], object]) -> Inputs:
        numbers, stored = numbered
        inputs = split.prepare(stored)
        assert isinstance(inputs, Tensor)
        at = place[torch.from_numpy(numbers)]
        inputs[at >= 0] = images[at[at >= 0]]
        return inputs

    return replace(split, inputs=Numbered(stored=split.inputs), prepare=prepare)


CANARIES = 300
VIEW = ThreatModel(view="client")


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What a run with canaries shows: score and inclusion of each canary, the checks, the kind of
    canary, and how often each path ran.
    """

    scores: Float[np.ndarray, " m"]
    included: Bool[np.ndarray, " m"]
    checks: tuple[Check, ...]
    canaries: int
    kind: str
    paths: Counter[str]


def audit_training(
    audited: Audited,
    console: Console,
    *,
    canaries: int | None,
    kind: str | None,
    plant: str | None,
    seed: int | None,
) -> tuple[Verdict, int, str, Counter[str]]:
    """Run with canaries, score every payload, judge; also how many canaries there were, of which
    kind, and how often each path ran.
    """
    scores = find(audited, console, canaries=canaries, kind=kind, plant=plant, seed=seed)
    with console.status("computing bounds"):
        return (
            judge(scores.scores, scores.included, audited.claim, scores.checks),
            scores.canaries,
            scores.kind,
            scores.paths,
        )


def find(
    audited: Audited,
    console: Console,
    *,
    canaries: int | None,
    kind: str | None,
    plant: str | None,
    seed: int | None,
) -> Found:
    """Run with canaries and score every payload, without the bounds, which take longest where
    epsilon is large.

    Raises ValueError for settings that a payload alone cannot be judged by.
    """
    settings = settings_of(audited.subject.base.settings, seed)
    plan = ready_plan(settings)
    check(plan)
    count = min(CANARIES, len(plan.workload.train) // 4) if canaries is None else canaries
    if not 10 <= count <= len(plan.workload.train) // 2:
        raise ValueError(
            f"expected 10 <= --canaries={count} <= half of {len(plan.workload.train)} training "
            "examples"
        )
    inserted, kind = choose_canaries(plan, count, seed), kind or strongest(plan.workload.train)
    plan = with_canaries(plan, inserted, kind)
    with ExitStack() as trained:
        rounds = plan.schedule.rounds
        with (
            count_bar(console, "training, round", rounds) as tick,
            planted(plant),
            counted() as (paths, _),
        ):
            directory, summary = trained.enter_context(run_in_scratch(plan, lambda row: tick()))
        refuse_diverged(summary)
        base = Base(**{f.name: getattr(plan, f.name) for f in fields(Base)})
        record = Record(
            run=directory, base=base, payloads=open_record(str(directory.path), VIEW).payloads
        )
        return scores_of(record, inserted, kind, console, paths)


def settings_of(settings: Settings, seed: int | None) -> Settings:
    """The same on the local engine with recorded updates; with a ``seed``, everything in it
    repeats.
    """
    changed = replace(
        settings, engine="local", record_updates=True, run_dir=None, evaluate_every=10**6
    )
    return changed if seed is None else replace(changed, seed=seed, reproducible=True)


def check(plan: Plan) -> None:
    """Raise ValueError if a payload of the run is not a sum of gradients at W_t with noise of its
    own.
    """
    s = plan.settings
    refuse_shuffled(s, "mode training")
    if plan.unit.persons:
        raise ValueError(
            f"mode training plays with one example, and this is unit={s.unit}: use --mode unit, "
            "whose canaries are persons with many rows"
        )
    if s.trust != "client" or plan.local.steps > 1:
        raise ValueError(
            "mode training judges single payloads of one local step: use trust=client, "
            "local_steps=1"
        )
    if (
        not plan.method.carrier.adds_up
        or plan.method.prune.reads_data
        or not plan.uplink.codec.known_noise
    ):
        raise ValueError(
            f"mode training does not read {s.codec} payloads of method {s.method}: use --mode unit"
        )
    if plan.rows.augment is not None:
        raise ValueError("mode training replays clients without augmentation: give -c augment=none")


def scores_of(
    record: Record, inserted: Inserted, kind: str, console: Console, paths: Counter[str]
) -> Found:
    """Scores of all canaries from every payload of their client, and the checks of all payloads."""
    scores, included, rounds = [], [], []
    total = sum(len(clients) for clients in record.payloads.values())
    with count_bar(console, "scoring, payload", total) as tick:
        for client in range(len(record.base.parts)):
            payloads, std = payloads_of(record, client, inserted, tick)
            rounds += payloads
            if payloads:
                scores.append(canary_scores(payloads, std, record.base.local.sample_rate))
                included.append(inserted.included[inserted.clients == client])
    return Found(
        scores=torch.cat(scores).numpy(),
        included=torch.cat(included).numpy(),
        checks=tuple(payload_checks(rounds)),
        canaries=len(inserted.rows),
        kind=kind,
        paths=paths,
    )


def payloads_of(
    record: Record, client: int, inserted: Inserted, tick: Callable[[], None]
) -> tuple[list[Payload], float]:
    """Each payload of a client with its canaries, and the standard deviation of the noise."""
    mine = inserted.clients == client
    canaries, included = inserted.rows[mine], inserted.included[mine]
    train, part = record.base.workload.train, record.base.parts[client]
    rest = train.batch(part[~torch.isin(part, canaries)])
    payloads, std = [], 0.0
    for round in sorted(record.payloads):
        if client in record.payloads[round]:
            observation = record.observation(round, client).to(record.base.device)
            payloads.append(examine(observation, train.batch(canaries), rest, included))
            std = observation.noise_std
            tick()
    return payloads, std
