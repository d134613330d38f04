"""A rehearsal: one round of one client and the server on public rows, before anybody is charged.

The driver rehearses once for a plan, a deployed client once for its settings. Rows of the test
split replace the client's own, with the same types and layout in memory. The results are thrown
away. No ledger, file or message is written, and generators and the user's objects are restored.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedlsg.carriers.powersgd import decode, encode
from fedlsg.carriers.probe import CannotDrawError
from fedlsg.gradients import check
from fedlsg.payload import unpack, value_bytes
from fedlsg.randomness import own_draws
from fedlsg.simulations.client.client_account import ClientAccount
from fedlsg.simulations.client.process_state import Held, Process
from fedlsg.simulations.client.train import pack_values, train_round
from fedlsg.simulations.planning.base.run_base import Base, SomeBase
from fedlsg.simulations.planning.faults.model_faults import probes
from fedlsg.simulations.workloads import Split
from fedlsg.simulations.workloads.base.split import NoRows
from fedlsg.state import ClientTerms, Phase, RoundPlan, ServerState
from fedlsg.strategies.own_loop.one_round import check_moved, in_words, sizes_of
from fedlsg.strategies.own_loop.row_layout import Layout, laid_out, layout_of
from fedlsg.strategies.protocol.wire import Announcement
from fedlsg.tensors import fields_of, of_fields
from fedlsg.training.local_training import shape_of
from fedlsg.user_code.objects import restored

CLIENT = 0
"""The number of the client that rehearses."""
MOST_STEPS = 2
"""Local steps of a rehearsal, at most: the second one starts from weights that the first changed.
"""


class NoAccount(ClientAccount):
    """The account of a rehearsal: nothing is charged, checked or kept."""

    client = CLIENT


def rehearse(base: Base, terms: ClientTerms) -> int:
    """Rehearse the first round of a client with these terms, and the pruning round before it.

    Returns the bytes of its update, without the header. Raises ValueError with the cause,
    UnsupportedLayerError as the round itself would, and CannotDrawError for a client that gets the
    carriers of a probe from the server: the server has rehearsed this round.
    """
    test = base.workload.test
    if not isinstance(base.workload.train, NoRows):
        with restored(test.prepare, base.workload.train.prepare, data=True):
            test = arranged(test, base.workload.train)
    inputs, targets = test.batch(_of_one_length(test))
    state = base.initial.server()
    try:
        with (
            restored(base.workload.loss, test.prepare, base.workload.models, data=True),
            own_draws(base.device),
        ):
            while True:
                common = state.plan(base.local, base.sums, base.unit)
                plan = common.for_client(terms.of(common.phase))
                received, sent = _answer(base, state, plan, terms, test)
                if plan.phase is Phase.TRAINING:
                    break
                state.prune(plan.frame, [received], num_examples=terms.num_examples)
            state.finish_round(plan.frame, [received], noise_std=plan.noise_std)
            with state.evaluated() as model:
                check_moved(model)
    except CannotDrawError:
        raise
    except Exception as error:
        raise in_words(error, state.model, inputs, targets) from error
    return sent


def _answer(
    base: Base, state: ServerState, plan: RoundPlan, terms: ClientTerms, test: Split
) -> tuple[Tensor, int]:
    """The values that the server reads from the client's payload, and the payload's bytes."""
    shape = shape_of(plan.local, state.public.parameters.values(), one_shape=plan.frame.one_shape)
    size = sizes_of(plan.local, shape, terms.num_examples)[-1]
    steps = min(plan.local.steps, MOST_STEPS)
    local = replace(plan.local, sample_rate=1.0, shuffled=0, steps=steps)
    here = Process(
        base=on_public_rows(base, test, size), state=state.public, held=Held(state.public)
    )
    checked = check(state.model, plan.frame)
    train = partial(train_round, here, NoAccount(), replace(plan, local=local), size, checked)
    if plan.release is not None:
        seed, release = base.settings.seed, plan.release
        values = train(
            lambda total, mechanism, stream: release.encode(
                total, stream, seed=seed, round=plan.round
            )
        )
        sent = math.ceil(len(values) * release.grid.bits / 8)
        return release.decode(values, seed=seed, round=plan.round), sent
    announced = Announcement(
        round=plan.round,
        updates=0,
        frame_digest=plan.frame.digest,
        sample_rate=1.0,
        noise_multiplier=terms.noise_multiplier,
        expected_batch=base.local.expected_batch,
        run_dir="",
        isolation=base.local.isolation,
        features=base.workload.features_digest,
    )
    dither = base.uplink.dither(CLIENT, plan)
    payload = pack_values(
        encode(train(), plan.frame), plan.frame, here.base, announced, dither, lambda: None
    )
    expected = base.uplink.expected(plan.frame, round=plan.round, dither=dither)
    received = decode(unpack(payload, expected), plan.frame)
    return received, value_bytes(payload)


def arranged(rows: Split, like: Split) -> Split:
    """Rows with the types and the layout in memory of ``like``, whose values are not used."""
    inputs, targets = like.batch(torch.arange(min(2, len(like))))
    form = {name: (values.dtype, layout_of(values)) for name, values in fields_of(inputs).items()}
    labels = laid_out(rows.labels.to(targets.dtype), layout_of(targets))
    return replace(rows, prepare=partial(_arrange, rows.prepare, form), labels=labels)


def _arrange(
    prepare: Callable[[Any], Any], form: Mapping[str, tuple[torch.dtype, Layout]], stored: Any
) -> Any:
    """Prepared inputs, each field in its (type, layout); unchanged if they have other fields."""
    inputs = fields_of(prepare(stored))
    if form.keys() == inputs.keys():
        for name, (dtype, layout) in form.items():
            inputs[name] = laid_out(inputs[name].to(dtype), layout)
    return of_fields(inputs)


def _of_one_length(test: Split) -> Tensor:
    """Test rows that may share a batch; only one if they are texts, whose lengths differ."""
    return probes(test)[:1] if test.lengths is not None else probes(test)


def on_public_rows(base: SomeBase, test: Split, size: int, *, clients: int = 1) -> SomeBase:
    """The base of a federation whose clients all hold the same ``size`` public rows.

    The rows are a few rows of a test split, repeated.
    """
    rows = _of_one_length(test)
    return replace(
        base,
        workload=replace(base.workload, train=test.pick(rows[torch.arange(size) % len(rows)])),
        parts=[torch.arange(size)] * clients,
        declared=None,
        person=torch.arange(size) if base.unit.persons else None,
    )
