"""Make one output of a round as its reader sees it, from units, by the code that a run uses.

Units go through clip, noise, grid, rotation, sum and decoding.
A unit is an example whose gradient is chosen, or a client whose update is. All that follows the
backward pass is the client's own: Poisson batch, weights of the blocks, clip, sum, noise, local
steps. The backward pass alone is replaced (``injection``). What the reader knows (the integers of
the clients that read along) is subtracted from what the server decodes.

    trust          unit       an output
    client         example    what one client sends
    aggregate      example    the sum of m clients, less the one that reads along, which no protocol
                              of ours provides
    secure         both       the decoded sum of m clients, less the t that read along
    server         client     what the server releases of a Poisson sample of clients

A person as the unit is ``ROWS_OF_PERSON`` rows with one gradient each, the canary's.

One client holds at most as many canaries as the frame has directions; more canaries are spread over
more clients. Clients have disjoint data, so that all outputs together are as private for each
canary as one client's are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.audit.played.injection import Units, given_gradients, refuse_loss
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.gradients import check
from fedlsg.privacy import Mechanism, poisson_batch
from fedlsg.randomness import SecretStream
from fedlsg.secure_sum.discrete import add_modulo, plan_release
from fedlsg.secure_sum.discrete.grid import decode
from fedlsg.secure_sum.discrete.sum_release import Release
from fedlsg.training import Persons, client_round, client_step, one_pass
from fedlsg.training.client_level import client_update, release_round
from fedlsg.training.client_round import AddNoise
from fedlsg.training.example_gradients import ExampleGradients
from fedlsg.training.local_training import Drawn, StepInputs, together

ROWS_OF_PERSON = 20
"""Rows of a person that is a canary: a clip of rows would let it move the sum by so many C."""
GIVEN_GRADIENTS = given_gradients()
"""Gradients of units as they are, none of them a ghost."""

Draw = Callable[..., SecretStream]
"""A secret stream by its labels."""
Rows = Float[Tensor, "n kept"]


class Output(NamedTuple):
    """What the reader sees of one round.

    ``values``: what the reader is left with.
    ``grid``: of a secure sum, the same before the rotation is undone.
    ``clip_norm``: of the next round, by a server that adapts it.
    """

    values: Float[Tensor, " kept"]
    grid: Float[Tensor, " kept"] | None = None
    clip_norm: float | None = None


def make_output(
    setting: AuditSetting,
    rows: Rows | Units,
    draw: Draw,
    round: int,
    gradients: ExampleGradients = GIVEN_GRADIENTS,
) -> Output:
    """One output of units with these gradients, or updates; the other clients in it have none.

    At example level the first client has all the units; at client level each client is one, or has
    an update of zeros.
    """
    if setting.stated.trust == "server":
        return _trusted_server(setting, rows, draw)
    release = _planned_release(setting)
    add = None if release is None else partial(_add_on_grid, release, round)
    members = range(setting.stated.members)
    if setting.stated.whole:
        zero = torch.zeros_like(rows[:1]) if len(rows) else torch.zeros(1, setting.frame.kept)
        updates = [rows[i] if i < len(rows) else zero[0] for i in members]
        sent = [
            _sent_update(setting, update, draw("noise", i), add) for i, update in enumerate(updates)
        ]
    else:
        sent = [
            _sent_sum(setting, rows if i == 0 else rows[:0], draw, i, add, gradients)
            for i in members
        ]
    return _seen_of_sum(setting, sent, release, round)


def _sent_sum(
    setting: AuditSetting,
    rows: Rows | Units,
    draw: Draw,
    client: int,
    add: AddNoise | None,
    gradients: ExampleGradients,
) -> Tensor:
    """What a client sends whose data are examples, or persons, with these gradients."""
    persons, each = None, 1
    if setting.unit.persons and len(rows):
        each = ROWS_OF_PERSON
        persons = Persons(
            torch.arange(len(rows)).repeat_interleave(each),
            most_rows=setting.person_rows,
            gradient=setting.person_gradient,
        )
    sent: Tensor = client_step(
        setting.model,
        lambda positions: batch_of(setting, rows, positions // each),
        refuse_loss,
        frame=setting.frame,
        mechanism=setting.mechanism,
        local=setting.local,
        num_examples=len(rows),
        sampler=draw("sampler", client),
        noise=draw("noise", client),
        charge=lambda: None,
        add=add,
        persons=persons,
        gradients=gradients,
    )
    return sent.cpu()


def _sent_update(
    setting: AuditSetting, update: Tensor, noise: SecretStream, add: AddNoise | None
) -> Tensor:
    """What a client sends whose local training ends with this update."""
    sent: Tensor = client_update(
        setting.model,
        lambda positions: (positions, positions),
        refuse_loss,
        frame=setting.frame,
        mechanism=setting.mechanism,
        local=setting.local,
        noise=noise,
        add=add,
        train=lambda *_, **__: update * setting.local.expected_batch,
    )
    return sent.cpu()


def batch_of(setting: AuditSetting, rows: Rows | Units, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of these units, one for each copy of an example, as inputs of a batch."""
    chosen = rows[positions].repeat_interleave(setting.local.multiplicity, 0)
    return chosen, torch.zeros(len(chosen))


def can_pass(setting: AuditSetting) -> bool:
    """Whether clients of a run may share a pass (``fedlsg.training.one_pass``)."""
    return (
        setting.sums is None
        and setting.unit.single
        and setting.mechanism.kind == "dp"
        and one_pass.can_share(_step_inputs(setting, Units(torch.zeros(1, 1), 1), GIVEN_GRADIENTS))
    )


def _step_inputs(setting: AuditSetting, rows: Units, gradients: ExampleGradients) -> StepInputs:
    return StepInputs(
        model=setting.model,
        batch=lambda positions: batch_of(setting, rows, positions),
        loss_fn=refuse_loss,
        frame=setting.frame,
        mechanism=setting.mechanism,
        local=setting.local,
        groups=together,
        num_examples=len(rows),
        draws=Drawn(positions=torch.zeros(0, dtype=torch.int64)),
        scale=None,
        parameters=check(setting.model, setting.frame),
        gradients=gradients,
    )


def outputs_of_pass(
    setting: AuditSetting,
    clients: Sequence[Units],
    streams: Sequence[Mapping[str, SecretStream]],
    gradients: ExampleGradients,
) -> list[Tensor]:
    """What clients that share a pass send.

    Each one's batch is drawn, all are summed together, and each takes its own step on its sum.
    """
    steps = []
    for rows, stream in zip(clients, streams, strict=True):
        step = _step_inputs(setting, rows, gradients)
        draws = client_round.draws_of(setting.local, len(rows), stream["sampler"])
        positions = client_round.next_batch(replace(step, draws=draws))
        steps.append(replace(step, draws=Drawn(positions=positions)))
    slots = [one_pass.slot_of(setting.local, len(rows)) for rows in clients]
    sums = one_pass.sums_in_one_pass(steps, slots)
    return [
        client_step(
            setting.model,
            step.batch,
            step.loss_fn,
            frame=setting.frame,
            mechanism=setting.mechanism,
            local=setting.local,
            num_examples=step.num_examples,
            sampler=summed,
            noise=stream["noise"],
            charge=lambda: None,
            gradients=gradients,
        ).cpu()
        for step, summed, stream in zip(steps, sums, streams, strict=True)
    ]


def _trusted_server(setting: AuditSetting, rows: Rows | Units, draw: Draw) -> Output:
    """What a server that draws the clients releases of a round."""
    drawn = poisson_batch(len(rows), setting.unit.sample_rate, draw("clients"))
    batch = setting.local.expected_batch
    total, clip_norm = release_round(
        [rows[client].cpu() * batch for client in drawn.tolist()],
        frame=setting.frame,
        mechanism=setting.mechanism,
        expected_batch=batch,
        noise=draw("noise"),
        adaptive=setting.adaptive,
    )
    return Output(total.float(), clip_norm=clip_norm)


def _planned_release(setting: AuditSetting) -> Release | None:
    """The plan of a secure sum; None where values are sent as they are."""
    if setting.sums is None:
        return None
    frame = setting.frame
    return plan_release(
        setting.sums, setting.mechanism, values=frame.kept, blocks=len(frame.blocks)
    )


def _add_on_grid(
    release: Release, round: int, total: Tensor, mechanism: Mechanism, noise: SecretStream
) -> Tensor:
    """The integers that a client gives to a secure sum."""
    return release.encode(total, noise, seed=0, round=round)


def _seen_of_sum(
    setting: AuditSetting, sent: Sequence[Tensor], release: Release | None, round: int
) -> Output:
    """What is left of the sum once the reader has taken off what it knows."""
    honest = setting.stated.honest
    if release is None:
        return Output(reduce(torch.add, sent[:honest]))
    total = add_modulo(sent, release.grid)
    for known in sent[honest:]:
        total = (total - known).remainder(release.grid.modulus)
    return Output(
        release.decode(total, seed=0, round=round).float(), decode(total, release.grid).float()
    )
