"""Whether torch can run a model's code under ``vmap``, and how much slower a pass then is: on
made-up rows.
"""

import random
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlsg.frame import Coordinates, Frame, Keep, make_blocks
from fedlsg.gradients.isolation.levels import Isolation
from fedlsg.gradients.isolation.passes import block_gradients, per_example_gradients
from fedlsg.gradients.per_example import LossFunction, batch_size
from fedlsg.gradients.supported import trainable
from fedlsg.tensors import each as each_field
from fedlsg.tensors import spaced

COMPARED = 4096
"""Coordinates of a parameter that are compared."""
LONG, GROWS = 0.02, 4
"""Seconds of a pass that say enough, and by how much a batch grows below them."""
MOST_PASSES, ENOUGH = 5, 0.2
"""Passes that are timed, at most, and seconds after which there is no other one."""
CLOSE = 5e-3
"""Largest difference of two gradients of a row, in float32, relative to their length: a ReLU may
flip.
"""


def level_of_own_code(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any
) -> Isolation:
    """``isolated``, if the isolated pass runs and gives the gradients of rows alone; else ``rows``.

    ``inputs``, ``targets``: made-up or public rows. Draws of the model are not compared, only made.
    Raises what model and loss raise on rows alone.
    """
    frame = dense_frame(model, kept=COMPARED)
    gradients = partial(per_example_gradients, model, loss_fn, inputs, targets, frame)
    before = _generators()
    alone = torch.cat(gradients(isolation="rows"), 1)
    try:
        isolated = torch.cat(gradients(isolation="isolated"), 1)
    except Exception:  # torch has no rule for it under vmap
        return "rows"
    length = alone.norm(dim=1)
    close = ((isolated - alone).norm(dim=1) <= CLOSE * length + 1e-6) | ~length.isfinite()
    return "isolated" if before != _generators() or bool(close.all()) else "rows"


def slowdown(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, level: Isolation, most: int
) -> float | None:
    """The time of a pass at a level over that of one over the batch; None where the batch cannot be
    passed at once.

    Of these rows, repeated until a pass takes ``LONG`` or has ``most`` examples.
    """
    frame = dense_frame(model)
    while True:
        given = model, loss_fn, inputs, targets, frame
        try:
            at_level, at_once = (_seconds(*given, each) for each in (level, "checked"))
        except Exception:  # of the pass over the batch: a model that only runs on one example
            return None
        if at_once >= LONG or batch_size(inputs, targets) >= most:
            return at_level / at_once
        inputs, targets = (
            each_field(part, lambda t: torch.cat([t] * GROWS)[:most]) for part in (inputs, targets)
        )


def _seconds(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, frame: Frame, level: Any
) -> float:
    """The shortest of some passes: others of the machine make them longer, never shorter."""
    spent: list[float] = []
    while len(spent) < MOST_PASSES and sum(spent) < ENOUGH:
        start = time.perf_counter()
        block_gradients(model, loss_fn, inputs, targets, frame, isolation=level)
        spent.append(time.perf_counter() - start)
    return min(spent)


def dense_frame(model: nn.Module, kept: int | None = None) -> Frame:
    """The frame of all trainable parameters, none carried; of each, ``kept`` coordinates at
    most.
    """
    coordinates = tuple(
        Coordinates(name=n, shape=tuple(p.shape)) for n, p in trainable(model).items()
    )
    blocks = make_blocks(coordinates)
    if kept is not None:
        blocks = tuple(
            type(block)(
                parameter=block.parameter,
                part=block.part,
                shape=block.shape,
                keep=Keep(axis=None, index=spaced(block.size, kept)),
            )
            for block in blocks
        )
    return Frame(coordinates=coordinates, blocks=blocks)


def _generators() -> tuple[Any, ...]:
    """The states of the generators of torch, python and numpy on the CPU."""
    words: Any = np.random.get_state(legacy=False)
    state: Tensor = torch.get_rng_state()
    return (
        random.getstate(),
        words["state"]["pos"],
        words["state"]["key"].tobytes(),
        state.numpy().tobytes(),
    )
