"""The training mode of ``fedlsg audit``: a run on the local engine with canary examples, in a folder that is deleted.

Clients, wire and server are those of a run, and the audit reads what it recorded.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from rich.console import Console

from fedlsg.attacks.audit.checks import Check
from fedlsg.attacks.audit.plants import planted
from fedlsg.attacks.audit.training_mode import Payload, look, payload_checks, scored
from fedlsg.attacks.audit.verdict import Verdict, judge
from fedlsg.attacks.observation import ThreatModel
from simulations.attack.recorded.observations import Record, open_record
from simulations.audit.examples import Inserted, choose_canaries, strongest, with_canaries
from simulations.audit.subject import Audited
from simulations.client.model import serving
from simulations.engines import local
from simulations.plan.plan import Base, Plan
from simulations.report.progress import count_bar
from simulations.rundir.files.scratch import scratch
from simulations.rundir.rundir import RunDir
from simulations.server.diverged import refuse_diverged
from simulations.server.ready import ready_plan
from simulations.settings.sampling import refuse_shuffled
from simulations.settings.settings import Settings

CANARIES = 300
VIEW = ThreatModel(view="client")


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What a run with canaries shows: score and inclusion of each canary, the checks, and the kind of canary."""

    scores: Float[np.ndarray, " m"]
    included: Bool[np.ndarray, " m"]
    checks: tuple[Check, ...]
    canaries: int
    kind: str


def audit_training(
    audited: Audited, console: Console, *, canaries: int | None, kind: str | None, plant: str | None, seed: int | None
) -> tuple[Verdict, int, str]:
    """Run with canaries, score every payload, judge; also how many canaries there were, and of which kind."""
    found = find(audited, console, canaries=canaries, kind=kind, plant=plant, seed=seed)
    with console.status("computing bounds"):
        return judge(found.scores, found.included, audited.claim, found.checks), found.canaries, found.kind


def find(
    audited: Audited, console: Console, *, canaries: int | None, kind: str | None, plant: str | None, seed: int | None
) -> Found:
    """Run with canaries and score every payload, without the bounds, which take longest where epsilon is large.

    Raises ValueError for settings that a payload alone cannot be judged by.
    """
    settings = settings_of(audited.subject.base.settings, seed)
    plan = ready_plan(settings)
    check(plan)
    count = min(CANARIES, len(plan.workload.train) // 4) if canaries is None else canaries
    if not 10 <= count <= len(plan.workload.train) // 2:
        raise ValueError(f"expected 10 <= --canaries={count} <= half of {len(plan.workload.train)} training examples")
    inserted, kind = choose_canaries(plan, count, seed), kind or strongest(plan.workload.train)
    with scratch() as folder:
        directory = RunDir(folder)
        plan = with_canaries(replace(plan, settings=replace(plan.settings, run_dir=str(folder))), inserted, kind)
        directory.write_config(plan.settings)
        with count_bar(console, "training, round", plan.schedule.rounds) as tick, planted(plant), serving(plan):
            refuse_diverged(local.run(plan, directory, on_round=lambda row: tick()))
        base = Base(**{f.name: getattr(plan, f.name) for f in fields(Base)})
        record = Record(run=directory, base=base, payloads=open_record(str(folder), VIEW).payloads)
        return scores_of(record, inserted, kind, console)


def settings_of(settings: Settings, seed: int | None) -> Settings:
    """The same on the local engine with recorded updates; with a ``seed``, everything in it repeats."""
    made = replace(settings, engine="local", record_updates=True, run_dir=None, evaluate_every=10**6)
    return made if seed is None else replace(made, seed=seed, reproducible=True)


def check(plan: Plan) -> None:
    """Raise ValueError if a payload of the run is not a sum of gradients at W_t with noise of its own."""
    s = plan.settings
    refuse_shuffled(s, "mode training")
    if s.trust != "client" or plan.local.steps > 1:
        raise ValueError("mode training judges single payloads of one local step: use trust=client, local_steps=1")
    if not plan.method.carrier.adds_up or plan.method.prune.reads_data or not plan.codec.known_noise:
        raise ValueError(f"mode training does not read {s.codec} payloads of method {s.method}: use --mode unit")
    if plan.augment is not None:
        raise ValueError("mode training replays clients without augmentation: give -c augment=none")


def scores_of(record: Record, inserted: Inserted, kind: str, console: Console) -> Found:
    """Scores of all canaries from every payload of their client, and the checks of all payloads."""
    scores, included, rounds = [], [], []
    total = sum(len(clients) for clients in record.payloads.values())
    with count_bar(console, "scoring, payload", total) as tick:
        for client in range(len(record.base.parts)):
            seen, std = payloads_of(record, client, inserted, tick)
            rounds += seen
            if seen:
                scores.append(scored(seen, std, record.base.local.sample_rate))
                included.append(inserted.included[inserted.clients == client])
    return Found(
        scores=torch.cat(scores).numpy(),
        included=torch.cat(included).numpy(),
        checks=tuple(payload_checks(rounds)),
        canaries=len(inserted.rows),
        kind=kind,
    )


def payloads_of(
    record: Record, client: int, inserted: Inserted, tick: Callable[[], None]
) -> tuple[list[Payload], float]:
    """Each payload of a client with its canaries, and the standard deviation of the noise."""
    mine = inserted.clients == client
    canaries, included = inserted.rows[mine], inserted.included[mine]
    train, part = record.base.workload.train, record.base.parts[client]
    rest = train.batch(part[~torch.isin(part, canaries)])
    seen, std = [], 0.0
    for round in sorted(record.payloads):
        if client in record.payloads[round]:
            observation = record.observation(round, client).to(record.base.device)
            seen.append(look(observation, train.batch(canaries), rest, included))
            std = observation.noise_std
            tick()
    return seen, std
