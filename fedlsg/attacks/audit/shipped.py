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

A person as the unit is ``ROWS_OF_PERSON`` rows with one gradient each, the canary's.

One client holds at most as many canaries as the frame has directions; more canaries are spread over
more clients. Clients have disjoint data, so that all outputs together are as private for each
canary as one client's are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.attacks.audit.setting import Setting
from fedlsg.frame import Frame
from fedlsg.gradients import GhostGradients, check
from fedlsg.gradients.formulas.ghost import worth_it
from fedlsg.privacy import poisson_batch
from fedlsg.randomness import SecretStream
from fedlsg.secure_sum.discrete import add_modulo, plan_release
from fedlsg.secure_sum.discrete.grid import decode
from fedlsg.training import Persons, client_round, client_step, one_pass
from fedlsg.training.client_level import client_update, release_round
from fedlsg.training.client_round import AddNoise
from fedlsg.training.local_training import Drawn, StepInputs, together

LENGTH = 10.0
"""Norm of a canary's shortest block over C, so that every clip acts."""
ALTERNATIONS = 6
ROWS_OF_PERSON = 20
"""Rows of a person that is a canary: a clip of rows would let it move the sum by so many C."""


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
    return Canaries(
        gradients=unweighted(setting, torch.cat(units, 1)), clipped=torch.cat(clipped, 1)
    )


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


class Units:
    """n units for each row, as a batch function takes them: as many rows are never in memory.

    Those of different rows take turns; ``in_order``: those of one row follow each other.
    """

    def __init__(self, rows: Float[Tensor, "k kept"], each: int, *, in_order: bool = False) -> None:
        self.rows, self.each, self.in_order = rows, each, in_order

    def __len__(self) -> int:
        return len(self.rows) * self.each

    def __getitem__(self, at: Tensor | slice | int) -> Tensor:
        places = torch.arange(len(self))[at]
        return self.rows[places // self.each if self.in_order else places % len(self.rows)]

    def to(self, device: torch.device) -> "Units":
        """The same, with its rows on a device."""
        return Units(self.rows.to(device), self.each, in_order=self.in_order)


@dataclass(frozen=True, kw_only=True, eq=False)
class GhostLayer:
    """A weight whose gradients may be ghosts, and the direction that its units have: g of length 1
    in each position, times x.
    """

    module: nn.Linear
    x: Float[Tensor, "positions n"]
    way: Float[Tensor, " kept"]


def ghost_layers(
    setting: Setting, generator: torch.Generator, positions: int
) -> dict[int, GhostLayer]:
    """The blocks that ghost clipping is there for, by their place in the frame; none where the
    shipped step does not use it.
    """
    frame, stated = setting.frame, setting.stated
    allowed = client_round.allows_ghost_clipping(frame) and setting.mechanism.clip == "joint"
    if stated.whole or setting.unit.persons or setting.local.multiplicity > 1 or not allowed:
        return {}
    modules, layers = dict(setting.model.named_modules()), {}
    starts = [0, *torch.tensor([b.kept for b in frame.blocks]).cumsum(0).tolist()]
    for i, block in enumerate(frame.blocks):
        module = modules.get(block.parameter.removesuffix(".weight"))
        if type(module) is not nn.Linear or block.part != "dense" or block.kept != block.size:
            continue
        if worth_it(module.weight):
            g, x = (torch.randn(size, generator=generator) for size in block.shape)
            way = torch.zeros(frame.kept)
            way[starts[i] : starts[i + 1]] = torch.outer(g / g.norm(), x / x.norm()).flatten()
            inputs = (x / x.norm() / positions).expand(positions, -1)
            layers[i] = GhostLayer(module=module, x=inputs, way=way)
    return layers


def as_ghost(layer: GhostLayer, rows: Float[Tensor, "batch kept"]) -> GhostGradients:
    """Rows along ``layer.way`` as factors: the same g in every position."""
    positions, x = len(layer.x), layer.x.to(rows)
    g = (rows.unflatten(1, (-1, x.shape[1])) @ x[0] * positions).unsqueeze(1)
    g, x = g.repeat(1, positions, 1), x.expand(len(rows), -1, -1).contiguous()
    g, x = (g.squeeze(1), x.squeeze(1)) if positions == 1 else (g, x)
    return GhostGradients(layer.module, g, x, g._version)


@contextmanager
def injected(layers: Mapping[int, GhostLayer] | None = None) -> Iterator[None]:
    """Inside, ``client_step`` takes a batch's inputs, (B, kept), for the per-example gradients
    themselves; those of ``layers`` as ghosts.
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

    def blocks(*step: Any, **options: object) -> list[Tensor | GhostGradients]:
        formed = given(*step)
        return [
            as_ghost(layers[i], b) if layers and i in layers else b for i, b in enumerate(formed)
        ]

    home = "fedlsg.training.client_round"
    with patch(f"{home}.per_example_gradients", given), patch(f"{home}.block_gradients", blocks):
        if layers:
            yield
            return
        # no ghost clipping: there is no layer whose input and gradient these would be made of
        with patch(f"{home}.allows_ghost_clipping", lambda frame: False):
            yield


def unweighted(setting: Setting, rows: Float[Tensor, "k kept"]) -> Float[Tensor, "k kept"]:
    """Gradients that are these rows once the blocks' weights are on them; an update is clipped as
    it was sent.
    """
    if setting.stated.whole:
        return rows
    blocks = setting.frame.blocks
    parts = rows.split([b.kept for b in blocks], dim=1)
    return torch.cat([part / b.weight for part, b in zip(parts, blocks, strict=True)], 1)


def largest(setting: Setting, ways: Float[Tensor, "k kept"]) -> Float[Tensor, " k"]:
    """The most that a unit of any norm may add in these directions: C, or what is left of each
    block's C.
    """
    clip_norm = setting.mechanism.clip_norm
    if setting.mechanism.clip != "per-block":
        return torch.full((len(ways),), clip_norm, dtype=torch.float64)
    parts = ways.double().split([b.kept for b in setting.frame.blocks], dim=1)
    return clip_norm * torch.stack([part.norm(dim=1) > 0 for part in parts]).sum(0).sqrt()


def given_loss(outputs: object, targets: object) -> Tensor:
    """The loss of a canary, which nothing computes."""
    raise AssertionError("a canary's gradient is given, no loss is computed")


Draw = Callable[..., SecretStream]
"""A secret stream by its labels."""
Rows = Float[Tensor, "n kept"]
Inject = Callable[[], AbstractContextManager[None]]


class Output(NamedTuple):
    """``values``: what the reader is left with. ``grid``: of a secure sum, the same before the
    rotation is undone. ``clip_norm``: of the next round, by a server that adapts it.
    """

    values: Float[Tensor, " kept"]
    grid: Float[Tensor, " kept"] | None = None
    clip_norm: float | None = None


def output(
    setting: Setting,
    rows: Rows | Units,
    draw: Draw,
    round: int,
    inject: Inject = injected,
) -> Output:
    """One output of units with these gradients, or updates; the other clients in it have none.

    At example level the first client has all the units; at client level each client is one, or has
    an update of zeros.
    """
    if setting.stated.trust == "server":
        return _trusted_server(setting, rows, draw)
    add, joined = _joining(setting, round)
    members = range(setting.stated.members)
    if setting.stated.whole:
        zero = torch.zeros_like(rows[:1]) if len(rows) else torch.zeros(1, setting.frame.kept)
        member_rows = [rows[i : i + 1] if i < len(rows) else zero for i in members]
        return joined(
            [_update(setting, row[0], draw("noise", i), add) for i, row in enumerate(member_rows)]
        )
    return joined(
        [_gradients(setting, rows if i == 0 else rows[:0], draw, i, add, inject) for i in members]
    )


def _gradients(
    setting: Setting,
    rows: Rows | Units,
    draw: Draw,
    client: int,
    add: AddNoise | None,
    inject: Inject,
) -> Tensor:
    """What a client sends whose data are examples, or persons, with these gradients: the shipped
    ``client_step``.
    """
    persons, each = None, 1
    if setting.unit.persons and len(rows):
        each = ROWS_OF_PERSON
        persons = Persons(
            torch.arange(len(rows)).repeat_interleave(each),
            most_rows=setting.person_rows,
            gradient=setting.person_gradient,
        )
    with inject():
        sent: Tensor = client_step(
            setting.model,
            lambda positions: batch_of(setting, rows, positions // each),
            given_loss,
            frame=setting.frame,
            mechanism=setting.mechanism,
            local=setting.local,
            num_examples=len(rows),
            sampler=draw("sampler", client),
            noise=draw("noise", client),
            charge=lambda: None,
            add=add,
            persons=persons,
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


def batch_of(setting: Setting, rows: Rows | Units, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of these units, one for each copy of an example, as inputs of a batch."""
    chosen = rows[positions].repeat_interleave(setting.local.multiplicity, 0)
    return chosen, torch.zeros(len(chosen))


def can_pass(setting: Setting) -> bool:
    """Whether clients of a run may share a pass (``fedlsg.training.one_pass``)."""
    return (
        setting.sums is None
        and setting.unit.single
        and setting.mechanism.kind == "dp"
        and one_pass.can_share(_step_of(setting, Units(torch.zeros(1, 1), 1)))
    )


def _step_of(setting: Setting, rows: Units) -> StepInputs:
    return StepInputs(
        model=setting.model,
        batch=lambda positions: batch_of(setting, rows, positions),
        loss_fn=given_loss,
        frame=setting.frame,
        mechanism=setting.mechanism,
        local=setting.local,
        groups=together,
        num_examples=len(rows),
        draws=Drawn(positions=torch.zeros(0, dtype=torch.int64)),
        scale=None,
        parameters=check(setting.model, setting.frame),
    )


def outputs_of_pass(
    setting: Setting,
    clients: Sequence[Units],
    streams: Sequence[Mapping[str, SecretStream]],
    inject: Inject,
) -> list[Tensor]:
    """What clients send that share a pass: each one's batch is drawn, all are summed together, and
    each takes its own step on its sum.
    """
    steps = []
    for rows, stream in zip(clients, streams, strict=True):
        step = _step_of(setting, rows)
        draws = client_round.draws_of(setting.local, len(rows), stream["sampler"])
        drawn = client_round.next_batch(replace(step, draws=draws))
        steps.append(replace(step, draws=Drawn(positions=drawn)))
    slots = [one_pass.slot_of(setting.local, len(rows)) for rows in clients]
    with inject():
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
                sampler=drawn,
                noise=stream["noise"],
                charge=lambda: None,
            ).cpu()
            for step, drawn, stream in zip(steps, sums, streams, strict=True)
        ]


def _trusted_server(setting: Setting, rows: Rows | Units, draw: Draw) -> Output:
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
