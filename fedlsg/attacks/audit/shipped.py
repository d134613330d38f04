"""One output of a round as its reader sees it: canaries through the shipped clip, noise, grid,
rotation, sum, decoding.

A canary is an example whose gradient is chosen (or a client whose update is): orthogonal to the
other canaries', with energy in every block of the frame, and long enough that the clip acts on it.
Each is in a client's data with probability 1/2, in secret. All that follows the backward pass is
the client's own: Poisson batch, weights of the blocks, clip, sum, noise, local steps. The backward
pass alone is replaced (``injected``). What the reader knows (the integers of the clients that read
along) is subtracted from what the server decodes.

    trust          unit       an output
    client         example    what one client sends
    aggregate      example    the sum of m clients, less the one that reads along, which no protocol
                   of ours provides
    secure         both       the decoded sum of m clients, less the t that read along
    server         client     what the server releases of a Poisson sample of clients

One client holds at most as many canaries as the frame has directions; more canaries are spread over
more clients. Clients have disjoint data, so that all outputs together are as private for each
canary as one client's are.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple
from unittest.mock import patch

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.attacks.audit.setting import Setting
from fedlsg.frame import Frame
from fedlsg.privacy import poisson_batch
from fedlsg.randomness import SecretStream
from fedlsg.secure_sum.discrete import add_modulo, plan_release
from fedlsg.secure_sum.discrete.grid import decode
from fedlsg.training import client_step
from fedlsg.training.client_level import client_update, release_round
from fedlsg.training.client_round import AddNoise

LENGTH = 10.0
"""Norm of a canary's shortest block over C, so that every clip acts."""
ALTERNATIONS = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class Canaries:
    """gradients: (m, kept) as a client's backward pass gives them, or updates in the units of the
    clip.

    clipped: (m, kept) the most that each may add to the sum of one step.
    """

    gradients: Float[Tensor, "m kept"]
    clipped: Float[Tensor, "m kept"]


def make_canaries(setting: Setting, count: int, generator: torch.Generator) -> Canaries:
    """``count`` canaries for one client, or for one sum of clients, whose clipped gradients are
    orthogonal.

    Their energy is spread evenly over the blocks, as far as a small block has room for so many
    orthogonal ones: a clip that treats blocks on their own then lets nearly C times the root of
    their number pass, and one that misses a block lets ``LENGTH`` C pass. What they may add is
    computed here, and not by the code that is audited.
    Raises ValueError for more canaries than kept coordinates, or a mechanism that does not clip.
    """
    frame, mechanism = setting.frame, setting.mechanism
    if not 1 <= count <= frame.kept:
        raise ValueError(
            f"expected 1 <= canaries={count} <= {frame.kept} kept coordinates of the frame"
        )
    if not mechanism.clips:
        raise ValueError(
            f"mechanism {mechanism.kind!r} does not clip: there is no sensitivity to audit"
        )
    sizes = [b.kept for b in frame.blocks]
    pieces = orthogonal(sizes, count, generator).split(sizes, dim=1)
    shortest = torch.stack([p.norm(dim=1) for p in pieces if p.shape[1]]).amin(0).clamp_min(1e-6)
    units = [p * (LENGTH * mechanism.clip_norm / shortest).unsqueeze(1) for p in pieces]
    parts = units if mechanism.clip == "per-block" else [torch.cat(units, 1)]
    clipped = [
        part * (mechanism.clip_norm / part.norm(dim=1, keepdim=True).clamp_min(1e-12))
        for part in parts
    ]
    weighted = not setting.stated.whole  # an update is clipped as it was sent
    gradients = [u / b.weight if weighted else u for u, b in zip(units, frame.blocks, strict=True)]
    return Canaries(gradients=torch.cat(gradients, 1), clipped=torch.cat(clipped, 1))


def orthogonal(
    sizes: Sequence[int], count: int, generator: torch.Generator
) -> Float[Tensor, "m kept"]:
    """Orthonormal rows whose energy is near ``shares`` of the blocks: alternating between the two
    conditions.
    """
    rows = torch.randn(count, sum(sizes), generator=generator)
    wanted = torch.tensor(shares(sizes, count)).sqrt()
    for _ in range(ALTERNATIONS):
        pieces = [
            p * (w / p.norm(dim=1, keepdim=True).clamp_min(1e-12))
            for p, w in zip(rows.split(list(sizes), dim=1), wanted, strict=True)
        ]
        rows = torch.cat(pieces, 1)
        values, vectors = torch.linalg.eigh((rows @ rows.T).double())
        rows = ((vectors * values.clamp_min(1e-9).rsqrt()) @ vectors.T).float() @ rows
    return rows


def shares(sizes: Sequence[int], count: int) -> list[float]:
    """Share of the energy for each block: equal, but at most what ``count`` orthonormal rows can
    have there.
    """
    caps = [size / count for size in sizes]
    level, left, blocks = 0.0, 1.0, sorted(caps)
    for i, cap in enumerate(blocks):
        level = left / (len(blocks) - i)
        if cap >= level:
            break
        left -= cap
    return [min(cap, level) for cap in caps]


@contextmanager
def injected() -> Iterator[None]:
    """Inside, ``client_step`` takes a batch's inputs, (B, kept), for the per-example gradients
    themselves.
    """

    def given(
        model: nn.Module,
        loss_fn: object,
        inputs: Tensor,
        targets: Tensor,
        frame: Frame,
        **options: object,
    ) -> list[Tensor]:
        return list(inputs.split([b.kept for b in frame.blocks], dim=1))

    with (
        patch("fedlsg.training.client_round.per_example_gradients", given),
        patch("fedlsg.training.client_round.allows_ghost_clipping", lambda frame: False),
    ):
        # no ghost clipping: there is no layer whose input and gradient these would be made of
        yield


def given_loss(outputs: object, targets: object) -> Tensor:
    """The loss of a canary, which nothing computes."""
    raise AssertionError("a canary's gradient is given, no loss is computed")


Draw = Callable[..., SecretStream]
"""A secret stream by its labels."""
Rows = Float[Tensor, "n kept"]


class Output(NamedTuple):
    """``values``: what the reader is left with. ``grid``: of a secure sum, the same before the
    rotation is undone.
    """

    values: Float[Tensor, " kept"]
    grid: Float[Tensor, " kept"] | None = None


def output(setting: Setting, rows: Rows, draw: Draw, round: int) -> Output:
    """One output of units with these gradients, or updates; the other clients in it have none.

    At example level the first client has all the units; at client level each client is one, or has
    an update of zeros.
    """
    if setting.stated.trust == "server":
        return Output(_trusted_server(setting, rows, draw))
    add, joined = _joining(setting, round)
    members = range(setting.stated.members)
    if setting.stated.whole:
        zero = torch.zeros_like(rows[:1]) if len(rows) else torch.zeros(1, setting.frame.kept)
        own = [rows[i : i + 1] if i < len(rows) else zero for i in members]
        return joined(
            [_update(setting, row[0], draw("noise", i), add) for i, row in enumerate(own)]
        )
    return joined(
        [_gradients(setting, rows if i == 0 else rows[:0], draw, i, add) for i in members]
    )


def _gradients(
    setting: Setting, rows: Rows, draw: Draw, client: int, add: AddNoise | None
) -> Tensor:
    """What a client sends whose data are examples with these gradients: the shipped
    ``client_step``.
    """
    with injected():
        sent: Tensor = client_step(
            setting.model,
            lambda positions: (rows[positions], torch.zeros(len(positions))),
            given_loss,
            frame=setting.frame,
            mechanism=setting.mechanism,
            local=setting.local,
            num_examples=len(rows),
            sampler=draw("sampler", client),
            noise=draw("noise", client),
            charge=lambda: None,
            add=add,
        )
    return sent.cpu()


def _update(setting: Setting, values: Tensor, noise: SecretStream, add: AddNoise | None) -> Tensor:
    """What a client sends whose local training ends with this update."""
    with patch(
        "fedlsg.training.client_level.client_step",
        lambda *_, **__: values * setting.local.expected_batch,
    ):
        sent: Tensor = client_update(
            setting.model,
            lambda positions: (positions, positions),
            given_loss,
            frame=setting.frame,
            mechanism=setting.mechanism,
            local=setting.local,
            noise=noise,
            add=add,
        )
    return sent.cpu()


def _trusted_server(setting: Setting, rows: Rows, draw: Draw) -> Tensor:
    """What a server that draws the clients releases of a round."""
    drawn = poisson_batch(len(rows), setting.unit.sample_rate, draw("clients"))
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


def _joining(
    setting: Setting, round: int
) -> tuple[AddNoise | None, Callable[[list[Tensor]], Output]]:
    """How the clients of one output add noise, and what the reader makes of what they send."""
    honest = setting.stated.honest
    if setting.sums is None:
        return None, lambda sent: Output(reduce(torch.add, sent[:honest]))
    frame = setting.frame
    planned = plan_release(
        setting.sums, setting.mechanism, values=frame.kept, blocks=len(frame.blocks)
    )

    def joined(sent: list[Tensor]) -> Output:
        total = add_modulo(sent, planned.grid)
        for known in sent[honest:]:
            total = (total - known).remainder(planned.grid.modulus)
        return Output(
            planned.decode(total, seed=0, round=round).float(), decode(total, planned.grid).float()
        )

    return lambda total, mechanism, noise: planned.encode(total, noise, seed=0, round=round), joined
