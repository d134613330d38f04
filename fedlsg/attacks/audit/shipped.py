"""One output of a round as its reader sees it: the shipped clip, noise, grid, rotation, sum and decoding.

Only what comes before the clip is given: the gradients of canary examples, or the updates of canary clients. What the
reader knows (the integers of the clients that read along) is subtracted from what the server decodes.

    trust          unit       an output
    client         example    what one client sends
    aggregate      example    the sum of m clients, less the one that reads along; nobody provides this sum
    secure         both       the decoded sum of m clients, less the t that read along
    server         client     what the server releases of a Poisson sample of clients
"""

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple
from unittest.mock import patch

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.audit.canaries import given_loss, release
from fedlsg.attacks.audit.setting import Setting
from fedlsg.client_level import client_update, release_round
from fedlsg.discrete import add_modulo, plan_release
from fedlsg.privacy import poisson_batch
from fedlsg.randomness import SecretStream
from fedlsg.training.client import AddNoise

Draw = Callable[..., SecretStream]
"""A secret stream by its labels."""
Rows = Float[Tensor, "n kept"]


class Output(NamedTuple):
    """``values``: what the reader is left with. ``grid``: of a secure sum, the same before the rotation is undone."""

    values: Float[Tensor, " kept"]
    grid: Float[Tensor, " kept"] | None = None


def output(setting: Setting, rows: Rows, draw: Draw, round: int) -> Output:
    """One output of units with these gradients, or updates; the other clients in it have none.

    At example level the first client has all the units; at client level each client is one, or has an update of zeros.
    """
    if setting.stated.trust == "server":
        return Output(_trusted_server(setting, rows, draw))
    add, joined = _joining(setting, round)
    members = range(setting.stated.members)
    if setting.stated.unit == "client":
        zero = torch.zeros_like(rows[:1]) if len(rows) else torch.zeros(1, setting.frame.kept)
        own = [rows[i : i + 1] if i < len(rows) else zero for i in members]
        return joined([_update(setting, row[0], draw("noise", i), add) for i, row in enumerate(own)])
    return joined([_gradients(setting, rows if i == 0 else rows[:0], draw, i, add) for i in members])


def _gradients(setting: Setting, rows: Rows, draw: Draw, client: int, add: AddNoise | None) -> Tensor:
    """What a client sends whose examples have these gradients."""
    return release(
        rows,
        model=setting.model,
        frame=setting.frame,
        mechanism=setting.mechanism,
        local=setting.local,
        sampler=draw("sampler", client),
        noise=draw("noise", client),
        add=add,
    ).cpu()


def _update(setting: Setting, values: Tensor, noise: SecretStream, add: AddNoise | None) -> Tensor:
    """What a client sends whose local training ends with this update."""
    with patch("fedlsg.client_level.update.client_step", lambda *_, **__: values * setting.local.expected_batch):
        sent: Tensor = client_update(
            setting.model, lambda positions: (positions, positions), given_loss, frame=setting.frame,
            mechanism=setting.mechanism, local=setting.local, noise=noise, add=add,
        )  # fmt: skip
    return sent.cpu()


def _trusted_server(setting: Setting, rows: Rows, draw: Draw) -> Tensor:
    """What a server that draws the clients releases of a round."""
    assert setting.client_unit is not None
    drawn = poisson_batch(len(rows), setting.client_unit.sample_rate, draw("clients"))
    batch = setting.local.expected_batch
    total, _ = release_round(
        [rows[client].cpu() * batch for client in drawn.tolist()],
        frame=setting.frame,
        mechanism=setting.mechanism,
        expected_batch=batch,
        noise=draw("noise"),
        adaptive=setting.adaptive,
    )
    return total.float()


def _joining(setting: Setting, round: int) -> tuple[AddNoise | None, Callable[[list[Tensor]], Output]]:
    """How the clients of one output add noise, and what the reader makes of what they send."""
    honest = setting.stated.honest
    if setting.sums is None:
        return None, lambda sent: Output(reduce(torch.add, sent[:honest]))
    frame = setting.frame
    planned = plan_release(setting.sums, setting.mechanism, values=frame.kept, blocks=len(frame.blocks))

    def joined(sent: list[Tensor]) -> Output:
        total = add_modulo(sent, planned.grid)
        for known in sent[honest:]:
            total = (total - known).remainder(planned.grid.modulus)
        signed = torch.where(total >= planned.grid.modulus // 2, total - planned.grid.modulus, total)
        return Output(planned.decode(total, seed=0, round=round).float(), (signed.double() * planned.grid.step).float())

    return lambda total, mechanism, noise: planned.encode(total, noise, seed=0, round=round), joined
