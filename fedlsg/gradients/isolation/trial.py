"""Whether torch can run a model's code under ``vmap``, and how much slower a pass then is: on
made-up rows.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.frame import Coordinates, Frame, Keep, make_blocks
from fedlsg.gradients.hooked_pass.supported import trainable
from fedlsg.gradients.isolation.levels import Isolation, slow_word
from fedlsg.gradients.isolation.passes import (
    DRAW_TOGETHER,
    block_gradients,
    per_example_gradients,
)
from fedlsg.gradients.isolation.state import states_of_python
from fedlsg.gradients.per_example import LossFunction, batch_size
from fedlsg.tensors import rows_of, spaced
from fedlsg.user_code.failure import describe

COMPARED_COORDINATES = 4096
"""Coordinates of a parameter that are compared."""
PASS_SECONDS, BATCH_GROWTH = 0.05, 4
"""Seconds of a pass that say enough, and by how much a batch grows below them."""
MOST_PASSES, TIMED_SECONDS = 5, 0.1
"""Passes that are timed, at most, and seconds after which there is no third one."""
RULE = (
    "give the autograd.Function forward(x), setup_context and generate_vmap_rule = True, and no "
    "vmap of its own"
)
FILLED = "make what is filled in place from an input: x.new_zeros(...)"
BRANCH = "in code of yours, choose by torch.where, without if, item() or an index by values"
DRAWN = "draw by torch.randn_like(x) or torch.rand_like(x)"
WAYS = {
    "setup_context": RULE,
    "generate_vmap_rule": RULE,
    "a rule for vmap": RULE,
    "inplace arithmetic": FILLED,
    "broadcast shape": FILLED,
    "inplace randomness": DRAWN,
    ".item()": BRANCH,
    "data-dependent": BRANCH,
    "dynamic shape": BRANCH,
    "requires_grad_()": "take derivatives by inputs with torch.func.vmap(torch.func.jacrev(f))(x)",
    "interpreter must not": "switch activation checkpointing off",
    "lstm_cell": "take nn.LSTM over the whole sequence",
}
"""Words in an error of torch under ``vmap``, and what to write instead."""
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
    return "rows" if why_rows(model, loss_fn, inputs, targets) else "isolated"


def why_rows(model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any) -> str:
    """Why own code cannot be isolated, and the way out where one is known; empty where it can."""
    frame = dense_frame(model, kept=COMPARED_COORDINATES)
    gradients = partial(per_example_gradients, model, loss_fn, inputs, targets, frame)
    before = _generators()
    alone = torch.cat(gradients(isolation="rows"), 1)
    try:
        isolated = torch.cat(gradients(isolation="isolated"), 1)
    except Exception as error:  # torch has no rule for it under vmap
        way = next((way for word, way in WAYS.items() if word in str(error)), "")
        return f"not isolated, because under vmap: {first_words(error)}" + (way and f"; {way}")
    if model in DRAW_TOGETHER:
        return f"not isolated, because draws by python or numpy would be shared; {DRAWN}"
    length = alone.norm(dim=1)
    close = ((isolated - alone).norm(dim=1) <= CLOSE * length + 1e-6) | ~length.isfinite()
    if before != _generators() or bool(close.all()):
        return ""
    return "not isolated, because under vmap its gradients are not those of each example alone"


def first_words(error: Exception) -> str:
    """Type and first sentence of an error, and the line of the user's code that raised it."""
    first = RuntimeError(str(error).partition(". ")[0]).with_traceback(error.__traceback__)
    return describe(first).replace("RuntimeError", type(error).__name__, 1)


def word_on(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, level: Isolation, most: int
) -> str:
    """What to say of own code at a level (``slow_word``), by passes over made-up or public rows."""
    given, reason = (model, loss_fn, inputs, targets), ""
    if level == "rows":
        try:
            reason = why_rows(*given)
        except Exception as error:
            reason = f"it fails on the rows that are tried: {first_words(error)}"
    return slow_word(level, slowdown(*given, level, most), reason)


def slowdown(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, level: Isolation, most: int
) -> float | None:
    """The time of a pass at a level over that of one over the batch, both of ``most`` examples, of
    these rows, repeated. None where the batch cannot be passed at once.
    """
    frame, count = dense_frame(model), batch_size(inputs, targets)

    def seconds(level: Isolation, size: int) -> float:
        rows = torch.arange(size) % count
        return _seconds(model, loss_fn, rows_of(inputs, rows), rows_of(targets, rows), frame, level)

    try:
        return seconds_at(partial(seconds, level), most) / seconds_at(
            partial(seconds, "checked"), most
        )
    except Exception:  # a model that runs on one example only
        return None


def seconds_at(seconds: Callable[[int], float], most: int) -> float:
    """The time of a pass over ``most`` examples: measured, or, where fewer take ``PASS_SECONDS``,
    on the line through the last two sizes.
    """
    size, taken, slope = 1, seconds(1), 0.0
    while size < most and (taken < PASS_SECONDS or size == 1):
        fewer, before, size = size, taken, min(BATCH_GROWTH * size, most)
        taken = seconds(size)
        slope = max(0.0, taken - before) / (size - fewer)
    return taken + slope * max(0, most - size)


def _seconds(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, frame: Frame, level: Any
) -> float:
    """The shortest of some passes: others of the machine make them longer, or a compiler."""
    spent: list[float] = []
    while len(spent) < 2 or (len(spent) < MOST_PASSES and sum(spent) < TIMED_SECONDS):
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
    state: Tensor = torch.get_rng_state()
    return *states_of_python(), state.numpy().tobytes()
