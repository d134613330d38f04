"""The training mode of ``fedlsg audit``: a run on the local engine with canary examples, in a folder that is deleted.

Canaries are training examples with a wrong label. Each is in its client's data by a fair secret coin; the other
examples, their clients, the divisor and the noise stay as they are, whatever the coins. Clients, wire and server are
those of a run, and the audit reads what it recorded.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from unittest.mock import patch

import torch
from rich.console import Console
from torch import Tensor

from fedlsg.attacks.audit import Claim, Verdict, judge
from fedlsg.attacks.audit_checks import displacement
from fedlsg.attacks.observation import ThreatModel
from fedlsg.attacks.plants import planted
from fedlsg.attacks.training_mode import Seen, look, payload_checks, scored
from fedlsg.client import Positions
from fedlsg.randomness import SecretStream, public_generator, reproducible_stream, secret_stream
from simulations.attack.record import Record, open_record
from simulations.audit_display import progress_bar
from simulations.audit_subject import Audited
from simulations.client import process
from simulations.engines import local
from simulations.plan import Base, Plan, make_plan
from simulations.rundir import RunDir
from simulations.settings import Settings

CANARIES = 300
VIEW = ThreatModel(view="client")


@dataclass(frozen=True, kw_only=True, eq=False)
class Inserted:
    """Rows of the training split that are canaries, ascending, the client of each, and its coin."""

    rows: Positions
    clients: Positions
    coins: Tensor


def audit_training(
    audited: Audited, console: Console, *, canaries: int | None, plant: str | None, seed: int | None
) -> tuple[Verdict, int]:
    """Run with canaries, score every payload, judge; also how many canaries there were.

    Raises ValueError for settings that a payload alone cannot be judged by.
    """
    settings = settings_of(audited.subject.base.settings, seed)
    plan = make_plan(settings)
    check(plan)
    count = min(CANARIES, len(plan.workload.train) // 4) if canaries is None else canaries
    if not 10 <= count <= len(plan.workload.train) // 2:
        raise ValueError(f"expected 10 <= --canaries={count} <= half of {len(plan.workload.train)} training examples")
    inserted = choose(plan, count, seed)
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDir.open(folder)
        plan = with_canaries(replace(plan, settings=replace(plan.settings, run_dir=folder)), inserted)
        directory.write_config(plan.settings)
        with progress_bar(console, "training, round", plan.schedule.rounds) as tick, planted(plant), serving(plan):
            local.run(plan, directory, on_round=lambda row: tick())
        base = Base(**{f.name: getattr(plan, f.name) for f in fields(Base)})
        record = Record(run=directory, base=base, payloads=open_record(folder, VIEW).payloads)
        return judged(record, inserted, audited.claim, console), count


def settings_of(settings: Settings, seed: int | None) -> Settings:
    """The same on the local engine with recorded updates; with a ``seed``, everything in it repeats."""
    made = replace(settings, engine="local", device="cpu", record_updates=True, run_dir=None, evaluate_every=10**6)
    return made if seed is None else replace(made, seed=seed, reproducible=True)


def check(plan: Plan) -> None:
    """Raise ValueError for a run whose payloads do not hold a sum of gradients of W_t with noise of their own."""
    s = plan.settings
    if s.trust != "client" or plan.local.steps > 1:
        raise ValueError("mode training judges single payloads of one local step: use trust=client, local_steps=1")
    if plan.method.carrier.kind == "factors" or plan.method.prune.reads_data:
        raise ValueError(f"mode training does not read the payloads of method {s.method}: use --mode unit")
    if plan.augment is not None:
        raise ValueError("mode training replays clients without augmentation: give -c augment=none")


def choose(plan: Plan, count: int, seed: int | None) -> Inserted:
    """Canaries drawn from all training examples, and a coin for each."""
    coin: SecretStream = secret_stream() if seed is None else reproducible_stream(seed, "audit", "coins")
    generator = public_generator(plan.settings.seed, "audit", "canaries")
    rows = torch.randperm(len(plan.workload.train), generator=generator)[:count].sort().values
    owner = torch.zeros(len(plan.workload.train), dtype=torch.int64)
    for client, part in enumerate(plan.parts):
        owner[part] = client
    return Inserted(rows=rows, clients=owner[rows], coins=coin.bernoulli(count, 0.5))


def with_canaries(plan: Plan, inserted: Inserted) -> Plan:
    """The plan with canaries' labels moved to another class, and those that are out taken from their clients."""
    workload, rows = plan.workload, inserted.rows
    generator = public_generator(plan.settings.seed, "audit", "labels")
    labels = workload.train.labels.clone()
    shift = torch.randint(1, workload.num_classes, (len(rows),), generator=generator)
    labels[rows] = (labels[rows] + shift) % workload.num_classes
    out = rows[~inserted.coins]
    parts = [part[~torch.isin(part, out)] for part in plan.parts]
    if any(not len(part) for part in parts):
        raise ValueError("a client has no example left: take fewer --canaries or fewer clients")
    terms = [replace(t, num_examples=len(part)) for t, part in zip(plan.terms, parts, strict=True)]
    train = replace(workload.train, labels=labels)
    return replace(plan, workload=replace(workload, train=train), parts=parts, terms=tuple(terms))


@contextmanager
def serving(plan: Plan) -> Iterator[None]:
    """Clients of this process take their data from ``plan`` instead of preparing their own."""
    process.cache_clear()
    try:
        with patch("simulations.client.prepare", lambda settings: plan):
            yield
    finally:
        process.cache_clear()


def judged(record: Record, inserted: Inserted, claim: Claim, console: Console) -> Verdict:
    """Scores of all canaries from every payload of their client, and the checks of all payloads."""
    columns: list[tuple[Tensor, Tensor, Tensor]] = []
    residuals = []
    total = sum(len(clients) for clients in record.payloads.values())
    with progress_bar(console, "scoring, payload", total) as tick:
        for client in range(len(record.base.parts)):
            mine = inserted.clients == client
            seen, std = payloads_of(record, client, inserted.rows[mine], tick)
            residuals += [one.residual.numpy() for one in seen]
            if seen:
                q = record.base.local.sample_rate
                moves = torch.stack([one.shares for one in seen]).mean(0) / q
                columns.append((scored(seen, std, q), moves, inserted.coins[mine]))
    scores, moved, coins = (torch.cat(column).numpy() for column in zip(*columns, strict=True))
    return judge(scores, coins, claim, (displacement(moved, coins), *payload_checks(residuals)))


def payloads_of(record: Record, client: int, canaries: Positions, tick: Callable[[], None]) -> tuple[list[Seen], float]:
    """All payloads of a client looked at for its canaries, and the deviation of their noise."""
    train, part = record.base.workload.train, record.base.parts[client]
    rest = train.batch(part[~torch.isin(part, canaries)])
    seen, std = [], 0.0
    for round in sorted(record.payloads):
        if client in record.payloads[round]:
            observation = record.observation(round, client)
            seen.append(look(observation, train.batch(canaries), rest))
            std = observation.noise_std
            tick()
    return seen, std
