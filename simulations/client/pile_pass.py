"""One pass through the model for several small clients of a pile, before their own calls.

A pass charges each of its clients, draws its batch and computes its clipped sum. The client's own
call takes them (``ahead``), adds the client's noise, packs and replies as usual. So ledger entries,
noise and payloads are made one by one. If the pass fails, the client's own call uses the same
batch: errors and hangs concern only their client.

Clients of a pass are simulated, charged by the driver, and take one local step of a method that
clips and adds noise (so its model was checked: it mixes no examples). No pass is made for
reproducible runs, whose bits must not depend on piles; secure sums, client-level privacy, pruning,
personal parameters, augmented examples, examples of several shapes, models that draw numbers
(dropout), and clients that are too large to gain from it.
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
"""Rows of a pass times trained numbers: gradients of 2^24 float32 values are 64 MiB."""


def may_share(base: Base) -> bool:
    """Whether clients of a run may share passes, by its public settings and data."""
    s, method, train = base.settings, base.method, base.workload.train
    return (
        not s.reproducible
        and method.mechanism.kind == "dp"
        and base.local.steps == base.local.multiplicity == 1
        and base.unit.single
        and base.sums is None
        and base.rows.augment is None
        and train.groups is None
        and train.lengths is None
        and not method.personal
    )


def passes(pile: Pile, partitions: int, run_config: Mapping[str, Any]) -> list[list[Task]]:
    """Divide a pile into passes, in its order; clients that share none are alone in theirs."""
    one_by_one = [[task] for task in pile]
    if len(pile) < 2 or any(
        task.message.metadata.message_type != MessageType.TRAIN for task in pile
    ):
        return one_by_one
    try:
        here = process(simulated_settings(run_config, partitions))
        if here.draws_numbers or not may_share(here.base):
            return one_by_one
        return _divide(here, pile)
    except Exception:  # each client's own call reports it
        return one_by_one


def _divide(here: Process, pile: Pile) -> list[list[Task]]:
    """Fill one pass after the other with clients, up to the rows that fit a pass."""
    most_rows = min(
        here.base.local.microbatch_size,
        MOST_NUMBERS // sum(p.numel() for p in here.state.parameters.values()),
    )
    divided: list[list[Task]] = []
    rows = most_rows  # full, so that the first client begins a pass
    for task in pile:
        part = here.base.parts[task.message.metadata.dst_node_id - FIRST_NODE]
        local = here.base.local.at_rate(read_round(task.message.content).sample_rate)
        slot = slot_of(local, len(part))
        if rows + slot > most_rows:
            divided.append([])
            rows = 0
        divided[-1].append(task)
        rows += slot
    return divided


def compute_ahead(pile: Pile, partitions: int, run_config: Mapping[str, Any]) -> None:
    """Charge each client of a pass, draw its batch and compute its sum.

    Errors are left to the clients' own calls.
    """
    AHEAD.clear()
    try:
        with without_exit():
            settings = simulated_settings(run_config, partitions)
            _compute(process(settings), settings, pile)
    except Exception:  # its text may quote a row: the client's own call handles it
        log(WARNING, "a pass of %d clients failed: one by one", len(pile))


def _compute(here: Process, settings: Settings, pile: Pile) -> None:
    batches_ahead: list[Ahead] = []
    inputs: list[StepInputs] = []
    for task in pile:
        drawn = _draw(here, settings, task)
        if drawn is not None:
            batches_ahead.append(drawn[0])
            inputs.append(drawn[1])
    if len(inputs) < 2:
        return
    if any(ahead.loaded is not here.loaded for ahead in batches_ahead):
        raise ValueError("expected one model and one frame for all clients of a pass")
    first = batches_ahead[0].entry
    with here.passing(), draws(here.base, first.client, first.round):
        before = _generators()
        sums = sums_in_one_pass(inputs, [slot_of(x.local, x.num_examples) for x in inputs])
        here.draws_numbers = _generators() != before
    if here.draws_numbers:
        return
    for ahead, summed in zip(batches_ahead, sums, strict=True):
        AHEAD.put(replace(ahead, drawn=summed))


def _draw(here: Process, settings: Settings, task: Task) -> tuple[Ahead, StepInputs] | None:
    """Charge a client, draw its batch and keep it; None if its own call has to do so."""
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
    """The states of the generators from which a model may draw: of Python, numpy and torch."""
    state = np.random.get_state(legacy=False)["state"]
    return (
        random.getstate(),
        state["pos"],
        state["key"].tobytes(),
        torch.get_rng_state().numpy().tobytes(),
    )
