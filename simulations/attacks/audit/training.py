"""The training mode of ``fedlsg audit``: a training run with canary examples.

Clients, wire and server are those of a run, in a folder that is deleted. The audit reads the
recorded payloads. A canary is in the data of its client with probability 1/2, in secret. The other
examples, their clients, the divisor and the noise do not depend on which canaries are in.
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
from fedlsg.attacks.audit.played.coverage import count_paths
from fedlsg.attacks.audit.played.plants import planted
from fedlsg.attacks.audit.training_mode import Payload, canary_scores, examine, payload_checks
from fedlsg.attacks.audit.verdict import Verdict, judge
from fedlsg.attacks.observation import ThreatModel
from fedlsg.randomness import SecretStream, public_generator, reproducible_stream, secret_stream
from fedlsg.simulations.attacks.audit.audited import Audited
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

ImageRows = Float[Tensor, "m *shape"]


@dataclass(frozen=True, kw_only=True, eq=False)
class InsertedCanaries:
    """The canaries of a run.

    rows: of the training split, ascending.
    clients: the client of each canary.
    included: whether each canary is in the data of its client.
    """

    rows: Positions
    clients: Positions
    included: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class NumberedRows:
    """Stored examples whose items are (row numbers, examples)."""

    stored: Stored

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(
        self, rows: Int64[np.ndarray, " b"], /
    ) -> tuple[Int64[np.ndarray, " b"], object]:
        return rows, self.stored[rows]


def two_tone(images: ImageRows, generator: torch.Generator) -> ImageRows:
    """Random images: each value is the least or the greatest of ``images``, equally likely."""
    return torch.where(
        torch.rand(images.shape, generator=generator) < 0.5, images.min(), images.max()
    )


KINDS = ("mislabelled", "two-tone")
"""Kinds of canaries, see ``with_canaries``."""


def choose_canaries(plan: Plan, count: int, seed: int | None) -> InsertedCanaries:
    """Canaries drawn from all training examples, and which of them are included."""
    bits: SecretStream = (
        secret_stream() if seed is None else reproducible_stream(seed, "audit", "coins")
    )
    generator = public_generator(plan.settings.seed, "audit", "canaries")
    rows = torch.randperm(len(plan.workload.train), generator=generator)[:count].sort().values
    owner = torch.zeros(len(plan.workload.train), dtype=torch.int64)
    for client, part in enumerate(plan.parts):
        owner[part] = client
    return InsertedCanaries(rows=rows, clients=owner[rows], included=bits.bernoulli(count, 0.5))


def default_kind(train: Split) -> str:
    """The kind of canaries without a choice: two-tone for images, else mislabelled.

    In measurements no other kind was easier to distinguish than two-tone images.
    """
    first = images_of(train, torch.zeros(1, dtype=torch.int64))
    return "mislabelled" if first is None else "two-tone"


def images_of(train: Split, rows: Positions) -> ImageRows | None:
    """The images in these rows; None if inputs are no images."""
    inputs = train.batch(rows)[0]
    return inputs if isinstance(inputs, Tensor) and inputs.ndim == 4 else None


def with_canaries(plan: Plan, inserted: InsertedCanaries, kind: str) -> Plan:
    """The plan with canaries in the training split; clients lose those that are not included.

    mislabelled: the label is that of another class. two-tone: another image, with a random label.
    Raises ValueError for two-tone canaries of inputs that are no images, and for a client that has
    no example left.
    """
    train = plan.workload.train
    generator = public_generator(plan.settings.seed, "audit", "labels")
    labels = train.labels.clone()
    classes = plan.workload.classes("an audit of whole runs")
    least = 1 if kind == "mislabelled" else 0  # a shift by 0 keeps the label
    shift = torch.randint(least, classes, (len(inserted.rows),), generator=generator)
    labels[inserted.rows] = (labels[inserted.rows] + shift) % classes
    train = replace(train, labels=labels)
    if kind != "mislabelled":
        images = images_of(train, inserted.rows)
        if images is None:
            raise ValueError(
                f"canaries of kind {kind!r} are images: take mislabelled for {plan.workload.name}"
            )
        train = with_images(train, inserted.rows, two_tone(images, generator))
    excluded = inserted.rows[~inserted.included]
    parts = [part[~torch.isin(part, excluded)] for part in plan.parts]
    if any(not len(part) for part in parts):
        raise ValueError("a client has no example left: take fewer --canaries or fewer clients")
    terms = [
        replace(terms, num_examples=len(part))
        for terms, part in zip(plan.terms, parts, strict=True)
    ]
    return replace(
        plan, workload=replace(plan.workload, train=train), parts=parts, terms=tuple(terms)
    )


def with_images(split: Split, rows: Positions, images: ImageRows) -> Split:
    """The split with these prepared images in ``rows``."""
    image_of_row = torch.full((len(split),), -1)  # -1: the split's own image
    image_of_row[rows] = torch.arange(len(rows))

    def prepare(numbered: tuple[Int64[np.ndarray, " b"], object]) -> Inputs:
        numbers, stored = numbered
        inputs = split.prepare(stored)
        assert isinstance(inputs, Tensor)
        image = image_of_row[torch.from_numpy(numbers)]
        inputs[image >= 0] = images[image[image >= 0]]
        return inputs

    return replace(split, inputs=NumberedRows(stored=split.inputs), prepare=prepare)


MAX_CANARIES = 300
"""Canaries at most, without a choice."""
VIEW = ThreatModel(view="client")
"""The auditor sees every payload."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredRun:
    """The scores of a run with canaries.

    scores: one a canary, higher for included ones.
    included: whether each canary was in the data.
    checks: of all payloads.
    canaries: their number.
    kind: of the canaries.
    paths: how often each path of the code ran.
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
    """Run with canaries, score every payload, and judge.

    Returns the verdict, the number and the kind of the canaries, and how often each path of the
    code ran.
    """
    run = run_with_canaries(audited, console, canaries=canaries, kind=kind, plant=plant, seed=seed)
    with console.status("computing bounds"):
        verdict = judge(run.scores, run.included, audited.claim, run.checks)
    return verdict, run.canaries, run.kind, run.paths


def run_with_canaries(
    audited: Audited,
    console: Console,
    *,
    canaries: int | None,
    kind: str | None,
    plant: str | None,
    seed: int | None,
) -> ScoredRun:
    """Run with canaries and score every payload; bounds, which may take long, are not computed.

    Raises ValueError for settings under which a payload alone cannot be judged.
    """
    settings = settings_of(audited.subject.base.settings, seed)
    plan = ready_plan(settings)
    check_readable(plan)
    count = min(MAX_CANARIES, len(plan.workload.train) // 4) if canaries is None else canaries
    if not 10 <= count <= len(plan.workload.train) // 2:
        raise ValueError(
            f"expected 10 <= --canaries={count} <= half of {len(plan.workload.train)} training "
            "examples"
        )
    inserted = choose_canaries(plan, count, seed)
    kind = kind or default_kind(plan.workload.train)
    plan = with_canaries(plan, inserted, kind)
    with ExitStack() as run_folder:  # the plant ends with the training, the folder after the scores
        rounds = plan.schedule.rounds
        with (
            count_bar(console, "training, round", rounds) as tick,
            planted(plant),
            count_paths() as (paths, _),
        ):
            directory, summary = run_folder.enter_context(run_in_scratch(plan, lambda row: tick()))
        refuse_diverged(summary)
        base = Base(**{field.name: getattr(plan, field.name) for field in fields(Base)})
        record = Record(
            run=directory, base=base, payloads=open_record(str(directory.path), VIEW).payloads
        )
        return score_run(record, inserted, kind, console, paths)


def settings_of(settings: Settings, seed: int | None) -> Settings:
    """The settings on the local engine with recorded updates; repeatable with a ``seed``."""
    changed = replace(
        settings, engine="local", record_updates=True, run_dir=None, evaluate_every=10**6
    )
    return changed if seed is None else replace(changed, seed=seed, reproducible=True)


def check_readable(plan: Plan) -> None:
    """Raise ValueError unless a payload is a sum of gradients at W_t with noise of its own."""
    settings = plan.settings
    refuse_shuffled(settings, "mode training")
    if plan.unit.persons:
        raise ValueError(
            f"mode training has examples as canaries, and this is unit={settings.unit}: use --mode "
            "unit, whose canaries are persons with many rows"
        )
    if settings.trust != "client" or plan.local.steps > 1:
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
            f"mode training does not read {settings.codec} payloads of method {settings.method}: "
            "use --mode unit"
        )
    if plan.rows.augment is not None:
        raise ValueError("mode training replays clients without augmentation: give -c augment=none")


def score_run(
    record: Record, inserted: InsertedCanaries, kind: str, console: Console, paths: Counter[str]
) -> ScoredRun:
    """Scores of all canaries from every payload of their client, and the checks of all payloads."""
    scores, included, all_payloads = [], [], []
    total = sum(len(clients) for clients in record.payloads.values())
    with count_bar(console, "scoring, payload", total) as tick:
        for client in range(len(record.base.parts)):
            payloads, std = payloads_of(record, client, inserted, tick)
            all_payloads += payloads
            if payloads:
                scores.append(canary_scores(payloads, std, record.base.local.sample_rate))
                included.append(inserted.included[inserted.clients == client])
    return ScoredRun(
        scores=torch.cat(scores).numpy(),
        included=torch.cat(included).numpy(),
        checks=tuple(payload_checks(all_payloads)),
        canaries=len(inserted.rows),
        kind=kind,
        paths=paths,
    )


def payloads_of(
    record: Record, client: int, inserted: InsertedCanaries, tick: Callable[[], None]
) -> tuple[list[Payload], float]:
    """Each payload of a client with its canaries, and the standard deviation of the noise.

    Every round has the same noise; without a payload the deviation is 0.
    """
    of_client = inserted.clients == client
    canaries, included = inserted.rows[of_client], inserted.included[of_client]
    train, part = record.base.workload.train, record.base.parts[client]
    rest = train.batch(part[~torch.isin(part, canaries)])
    payloads: list[Payload] = []
    std = 0.0
    for round in sorted(record.payloads):
        if client in record.payloads[round]:
            observation = record.observation(round, client).to(record.base.device)
            payloads.append(examine(observation, train.batch(canaries), rest, included))
            std = observation.noise_std
            tick()
    return payloads, std
