"""Small clients of a pile in one pass through the model, ahead of their own calls. Here is decided
who takes part.

A pass charges each of its clients, draws each one's batch, and leaves it, with its clipped sum, to
the client's own call, which adds the client's noise, packs and replies as ever. So ledger entries,
noise and payloads are made one by one, and whatever the pass cannot do is done there, on the same
batch: errors and hangs are their client's own.

Who takes part: simulated clients that the driver has charged, in one local step of a method that
clips and adds noise (so its model was checked: it mixes no examples). One by one remain
reproducible runs, whose bits do not depend on how clients are shared out; secure sums, client-level
privacy, pruning, personal parameters, augmented examples, examples of several shapes, models that
draw numbers (dropout), and clients that are too large to gain from it.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from logging import WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import MessageType
from flwr.common.logger import log

from fedlsg.simulations.client.ahead import AHEAD, Ahead
from fedlsg.simulations.client.client_account import entry_of
from fedlsg.simulations.client.client_app import simulated_settings
from fedlsg.simulations.client.drawing import batches, draws, groups, sampler_of
from fedlsg.simulations.client.piles import Pile, Task
from fedlsg.simulations.client.process_state import Process, process
from fedlsg.simulations.client.train import follow, given_account, own_terms
from fedlsg.simulations.client.virtual import FIRST_NODE
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.settings.settings import Settings
from fedlsg.state import Phase
from fedlsg.strategies.protocol.wire import read_round
from fedlsg.training.client_round import draws_of, next_batch
from fedlsg.training.local_training import Drawn, StepInputs
from fedlsg.training.one_pass import can_share, slot_of, sums_in_one_pass
from fedlsg.user_code.failure import without_exit

MOST_NUMBERS = 2**24
"""Rows of a pass times trained numbers: the gradients of its examples take 64 MiB at most."""


def may_share(base: Base) -> bool:
    """Whether clients of a run may share passes, by what is public of it."""
    s, method, train = base.settings, base.method, base.workload.train
    return (
        not s.reproducible
        and method.mechanism.kind == "dp"
        and base.local.steps == base.local.multiplicity == 1
        and base.unit.single
        and all(it is None for it in (base.sums, base.rows.augment, train.groups, train.lengths))
        and not method.personal
    )


def passes(pile: Pile, partitions: int, run_config: Mapping[str, Any]) -> list[list[Task]]:
    """The pile in passes, in its order; a client that takes part in none is alone in its own."""
    if len(pile) < 2 or any(
        task.message.metadata.message_type != MessageType.TRAIN for task in pile
    ):
        return [[task] for task in pile]
    try:
        here = process(simulated_settings(run_config, partitions))
        if here.draws_numbers or not may_share(here.base):
            return [[task] for task in pile]
        return _divided(here, pile)
    except Exception:  # each client's own call reports it
        return [[task] for task in pile]


def _divided(here: Process, pile: Pile) -> list[list[Task]]:
    most = min(
        here.base.local.microbatch_size,
        MOST_NUMBERS // sum(p.numel() for p in here.state.parameters.values()),
    )
    found: list[list[Task]] = []
    rows = most
    for task in pile:
        part = here.base.parts[task.message.metadata.dst_node_id - FIRST_NODE]
        slot = slot_of(
            here.base.local.at_rate(read_round(task.message.content).sample_rate), len(part)
        )
        if rows + slot > most:
            found.append([])
            rows = 0
        found[-1].append(task)
        rows += slot
    return found


def compute_ahead(pile: Pile, partitions: int, run_config: Mapping[str, Any]) -> None:
    """Charge and draw for each client of a pass, and sum. What goes wrong is left to the clients'
    own calls.
    """
    AHEAD.clear()
    try:
        with without_exit():
            settings = simulated_settings(run_config, partitions)
            _compute(process(settings), settings, pile)
    # without its text, which may quote a row: that is for the call of the client that failed
    except Exception:
        log(WARNING, "a pass of %d clients failed: one by one", len(pile))


def _compute(here: Process, settings: Settings, pile: Pile) -> None:
    drawn = [one for task in pile if (one := _drawn(here, settings, task)) is not None]
    if len(drawn) < 2:
        return
    if any(ahead.loaded is not here.loaded for ahead, _ in drawn):
        raise ValueError("expected one model and one frame for all clients of a pass")
    first = drawn[0][0].entry
    with here.passing(), draws(here.base, first.client, first.round):
        before = _generators()
        done = sums_in_one_pass(
            [x for _, x in drawn], [slot_of(x.local, x.num_examples) for _, x in drawn]
        )
        here.draws_numbers = _generators() != before
    for (ahead, _), summed in zip(drawn, done, strict=True):
        if not here.draws_numbers:
            AHEAD.put(replace(ahead, drawn=summed))


def _drawn(here: Process, settings: Settings, task: Task) -> tuple[Ahead, StepInputs] | None:
    """Charge a client, draw its batch and keep it; None for one that has to do it in its own
    call.
    """
    content, base = task.message.content, here.base
    account = given_account(here, settings, content, task.state)
    if account is None:
        return None
    announced, client = read_round(content), account.client
    loaded = follow(here, account, announced, content, shared=True)
    terms = own_terms(announced, len(base.parts[client]))
    plan = loaded.plan.for_client(terms)
    entry = entry_of(account, plan, terms.num_examples, reproducible=False)
    x = StepInputs(
        model=here.state.model,
        batch=batches(base, client, plan.round, []),
        loss_fn=base.workload.loss,
        frame=plan.frame,
        mechanism=plan.mechanism,
        local=plan.local,
        groups=groups(base, client),
        num_examples=terms.num_examples,
        draws=Drawn(positions=torch.zeros(0, dtype=torch.int64)),
        scale=None,
        parameters=loaded.parameters,
    )
    if plan.phase is not Phase.TRAINING or plan.frame.personal or not can_share(x):
        return None
    account.charge(entry)
    source = draws_of(plan.local, terms.num_examples, sampler_of(base, account, entry))
    batch = Drawn(positions=next_batch(replace(x, draws=source)))
    ahead = Ahead(account=account, entry=entry, drawn=batch, loaded=loaded)
    AHEAD.put(ahead)
    return ahead, replace(x, draws=batch)


def _generators() -> tuple[Any, ...]:
    """What tells whether a model has drawn numbers: then clients would share the draws."""
    words = np.random.get_state(legacy=False)["state"]
    return (
        random.getstate(),
        words["pos"],
        words["key"].tobytes(),
        torch.get_rng_state().numpy().tobytes(),
    )
