"""One server update as clients receive it: the server and every replica decode and apply the same
bytes.

    server    sum of a round -> step -> decoded sum -> ServerState.step
    replica                     step -> decoded sum, in the frame that it derives itself ->
                                ServerState.step

    offset  size  field
    0       1     kind: 1 values of an update, 2 kept weights of the pruning round
    1       4     round
    5       8     deviation of the noise in the sum (float64), for the codec's grid and ranked masks
    13      4     length of the payload
    17      ...   values: sum / divisor in the layout of fedlsg.payload.pack; kept weights: a bit a
            prunable weight

A step depends only on the sum over the clients of a round and on public constants, not on the
payload of a single client otherwise. It contains no more than the difference of two public models,
so no epsilon changes.

What a replica needs in addition to the weights to continue in the middle of a run: memory of the
optimizer and of ranked masks, carriers (``extra_vectors``). The rest of ``ServerState`` follows
from settings, round and number of updates: W_0, schedules, pruned weights.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.carriers.probe import flatten, refresh_of
from fedlsg.frame import Frame
from fedlsg.gradients import trainable
from fedlsg.masks import Masks, Memory, prunable, prune_in_place
from fedlsg.payload import LEVELS, Codec, Dither, Expected, IndexMode, pack, unpack
from fedlsg.randomness import public_generator
from fedlsg.state.round_plan import PRUNING_ROUND, Phase, finished_before, phase_of
from fedlsg.state.server_state import ServerState, load_weights
from fedlsg.training import make_optimizer

HEADER = struct.Struct("<BIdI")
VALUES, PRUNING = 1, 2
"""Kinds of steps."""


class StepError(ValueError):
    """A step that this state cannot take: it is damaged, or belongs to another round or frame."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One server update.

    kind: VALUES or PRUNING.
    round: its number.
    noise_std: deviation of the noise in the sum.
    payload: the encoded values.
    """

    kind: int
    round: int
    noise_std: float
    payload: bytes

    def to_bytes(self) -> bytes:
        """The bytes in the layout of this file's docstring."""
        return HEADER.pack(self.kind, self.round, self.noise_std, len(self.payload)) + self.payload


class DownDither(Dither):
    """The dither of server updates, which is independent of that of clients' values."""

    def draw(self, round: int, count: int) -> np.ndarray:
        """``Dither.draw`` from another public generator."""
        generator = public_generator(self.seed, "downlink-dither", round)
        return torch.randint(LEVELS, (count,), generator=generator, dtype=torch.int64).numpy()


def down_dither(state: ServerState, noise_std: float) -> DownDither:
    """The public dither of a step. Sum and noise are divided by the divisor."""
    return DownDither(seed=state.seed, client=-1, noise_std=noise_std / state.divisor)


def read_steps(data: bytes) -> list[Step]:
    """The steps in a run of bytes, one after the other. Raises StepError for anything else."""
    steps, place = [], 0
    while place < len(data):
        if place + HEADER.size > len(data):
            raise StepError("steps: a header is cut short")
        kind, round, noise_std, length = HEADER.unpack_from(data, place)
        place += HEADER.size
        if kind not in (VALUES, PRUNING) or length > len(data) - place:
            raise StepError(f"steps: kind {kind} with {length} bytes of {len(data) - place}")
        steps.append(
            Step(kind=kind, round=round, noise_std=noise_std, payload=data[place : place + length])
        )
        place += length
    return steps


def index_mode(state: ServerState) -> IndexMode:
    """The index mode of steps: positions are sent if clients choose their own, else derived."""
    return "chosen" if state.method.compression.chooses else "derived"


def encode_update(
    state: ServerState,
    frame: Frame,
    total: Float[Tensor, " kept"],
    *,
    noise_std: float,
    codec: Codec,
) -> Step:
    """The round's sum as a step. Raises PayloadError for values that the codec cannot hold (not
    finite).
    """
    values, positions = (total / state.divisor).float(), frame.indices
    mode = index_mode(state)
    if mode == "chosen":  # positions that no client chose are 0 in the sum
        positions = values.nonzero().squeeze(1)
        values = values[positions]
    payload = pack(
        values,
        positions,
        size=frame.size,
        round=state.round + 1,
        digest=frame.digest,
        codec=codec,
        index_mode=mode,
        blocks=frame.blocks,
        dither=down_dither(state, noise_std),
    )
    return Step(kind=VALUES, round=state.round + 1, noise_std=noise_std, payload=payload)


def decode_update(
    state: ServerState, frame: Frame, step: Step, codec: Codec
) -> tuple[Tensor, float]:
    """The sum that a step of values encodes, exactly, and the deviation of its noise. Raises
    PayloadError.
    """
    dither = down_dither(state, step.noise_std)
    values = unpack(
        step.payload,
        Expected(
            round=step.round,
            codec=codec,
            index_mode=index_mode(state),
            size=frame.size,
            indices=frame.indices,
            digest=frame.digest,
            blocks=frame.blocks,
            dither=dither,
            most=frame.size if index_mode(state) == "chosen" else None,
        ),
    )
    noise_std = step.noise_std
    if codec.added_variance:
        noise_std = codec.received_noise(dither.noise_std) * state.divisor
    return values.double() * state.divisor, noise_std


def encode_pruning(before: Masks, state: ServerState) -> Step:
    """The step of the pruning round: a bit for each weight that was prunable ``before``; 1 is
    kept.
    """
    weights = trainable(state.model)
    kept = [(weights[name].detach() != 0)[mask].cpu() for name, mask in before.items()]
    return Step(
        kind=PRUNING,
        round=PRUNING_ROUND,
        noise_std=0.0,
        payload=np.packbits(torch.cat(kept).numpy()).tobytes(),
    )


def apply_pruning(state: ServerState, step: Step) -> None:
    """Set to 0 the weights that the server pruned. Raises StepError for another number of bits."""
    may = prunable(trainable(state.model))
    sizes = [int(mask.sum()) for mask in may.values()]
    if state.pruned or len(step.payload) != (sum(sizes) + 7) // 8:
        raise StepError(f"pruning: {len(step.payload)} bytes for {sum(sizes)} weights")
    bits = torch.from_numpy(
        np.unpackbits(np.frombuffer(step.payload, np.uint8), count=sum(sizes)).astype(bool)
    )
    kept: Masks = {}
    for (name, mask), part in zip(may.items(), bits.split(sizes), strict=True):
        kept[name] = torch.ones(mask.shape, dtype=torch.bool).masked_scatter_(mask.cpu(), part)
    prune_in_place(trainable(state.model), kept)
    state.pruned = True


def replay(state: ServerState, step: Step, codec: Codec, frame: Frame | None = None) -> None:
    """Apply one step of the server to a replica; ``frame``: that of its round, if it is known.

    Raises StepError or PayloadError for a step that does not follow this state. Do not use the
    state after that.
    """
    if step.kind == PRUNING:
        apply_pruning(state, step)
        return
    if not state.pruned or step.round <= state.round:
        raise StepError(f"a step of round {step.round} does not follow on round {state.round}")
    state.round = step.round - 1  # rounds without a valid update leave no step
    frame = state.frame() if frame is None else frame
    total, noise_std = decode_update(state, frame, step, codec)
    state.step(total, frame, noise_std=noise_std)
    state.round = step.round


STEP = "step"
"""The number that most optimizers keep of each parameter: it counts updates, and is not sent."""


def extra_vectors(state: ServerState) -> dict[str, Tensor]:
    """Vectors, by name, that a replica needs in addition to the weights.

    They are those of the optimizer, flattened in model order; the memory's sums and counters; and
    the basis of a probe, unless the next round makes another one.
    """
    buffers = state.optimizer.state
    kept = [buffers[p] for p in trainable(state.model).values() if p in buffers]
    # before the first update they follow from the settings
    names = _sent_names(kept) if state.updates else []
    vectors = {
        name: torch.cat([each[name].flatten() for each in kept if name in each]) for name in names
    }
    basis, round = state.basis, state.next_round
    if basis is not None and basis.round == refresh_of(round, state.method.carrier) < round:
        vectors["basis"] = flatten(basis)
    if state.memory is not None:
        vectors["memory-counters"] = torch.tensor([state.memory.epoch, state.memory.updates])
        sums = {"memory-current": state.memory.current, "memory-last": state.memory.last}
        vectors |= {name: value for name, value in sums.items() if value is not None}
    return vectors


def restart(
    state: ServerState, weights: Tensor, extra: Mapping[str, Tensor], *, round: int, updates: int
) -> None:
    """Bring a replica to the server's state at the beginning of ``round``, after ``updates``
    updates.

    ``weights``: W_t; ``extra``: those of ``extra_vectors``.
    Raises ValueError for vectors that do not fit the model.
    """
    load_weights(state.model, weights)
    memory = _first_memory(state, stepped=updates > 0)
    for name in _sent_names(memory) if updates else []:
        places = [each for each in memory if name in each]
        sizes = [each[name].numel() for each in places]
        if name not in extra or extra[name].shape != (sum(sizes),):
            got = f"shape {tuple(extra[name].shape)}" if name in extra else "none"
            raise ValueError(f"expected {sum(sizes)} numbers of {name}, got {got}")
        for each, part in zip(places, extra[name].split(sizes), strict=True):
            each[name] = part.to(each[name], copy=True).reshape(each[name].shape)
    state.optimizer.state.clear()
    for p, buffers in zip(trainable(state.model).values(), memory, strict=True):
        if STEP in buffers:
            buffers[STEP] = torch.full_like(buffers[STEP], updates)
        if buffers:
            state.optimizer.state[p] = buffers
    if state.memory is not None:
        epoch, counted = (int(number) for number in extra["memory-counters"])
        sums = (extra.get("memory-current"), extra.get("memory-last"))
        state.memory = Memory(epoch=epoch, updates=counted, current=sums[0], last=sums[1])
    state.load_basis(extra.get("basis"), round=round)
    schedule(state, updates)
    state.round, state.updates = finished_before(round), updates
    state.pruned = phase_of(round) is Phase.TRAINING


def schedule(state: ServerState, updates: int) -> None:
    """Set the learning rates to those after ``updates`` updates, of which they are a function."""
    scheduler = state.scheduler
    assert scheduler is not None, "a replica has the method's own optimizer"
    scheduler.last_epoch, scheduler._step_count = updates, updates + 1
    for group, base, factor in zip(
        state.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
    ):
        group["lr"] = base * factor(updates)
    scheduler._last_lr = [group["lr"] for group in state.optimizer.param_groups]


def _first_memory(state: ServerState, *, stepped: bool) -> list[dict[str, Any]]:
    """The buffers of the method's optimizer for each parameter, before its first step or after one.

    ``stepped``: after one step with gradients of zero. After any number of steps there are as many
    numbers, under the same names.
    """
    copies = {name: nn.Parameter(torch.zeros_like(p)) for name, p in trainable(state.model).items()}
    optimizer, _ = make_optimizer(
        copies, state.method.server, updates=1, classifier=state.public.classifier
    )
    if stepped:
        for p in copies.values():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    return [dict(optimizer.state.get(p, {})) for p in copies.values()]


def _sent_names(memory: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the optimizer's buffers that are sent, each once, in their order."""
    names: list[str] = []
    for buffers in memory:
        for name, value in buffers.items():
            if name != STEP and value is not None and name not in names:
                names.append(name)
    return names
