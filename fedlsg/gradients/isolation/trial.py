"""Try a user's code on made-up rows: whether torch runs it under ``vmap``, and how slowly."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.frame import Coordinates, Frame, Keep, make_blocks
from fedlsg.gradients.hooked_pass.parameters import trainable
from fedlsg.gradients.isolation.levels import SLOW_FACTOR, Isolation, slow_word
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
"""Coordinates of each parameter that are compared."""
PASS_SECONDS = 0.05
"""Seconds of a pass that are long enough to measure."""
BATCH_GROWTH = 4
"""Factor by which a batch grows while its pass is shorter."""
MOST_PASSES = 5
"""Passes over one batch that are timed, at most; two are timed in any case."""
MOST_MEASURES = 3
"""Measures of a slowdown that a user reads about."""
TIMED_SECONDS = 0.1
"""Seconds of all passes over one batch, after which no further one is timed."""
RULE = (
    "give the autograd.Function forward(x), setup_context and generate_vmap_rule = True, and no "
    "vmap of its own"
)
FILLED = "make what is filled in place from an input: x.new_zeros(...)"
BRANCH = "in code of yours, choose by torch.where, without if, item() or an index by values"
DRAWN = "draw by torch.randn_like(x) or torch.rand_like(x)"
FIXES = {
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
"""Largest difference of two gradients of a row in float32, relative to their length: a ReLU may
flip.
"""
SMALLEST = 1e-6
"""Difference of two gradients that is always allowed, in absolute terms."""


def level_of_own_code(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any
) -> Isolation:
    """``isolated``, if the isolated pass runs and gives the gradients of rows alone; else ``rows``.

    inputs, targets: made-up or public rows.
    The gradients of a model that draws random numbers are not compared. Raises what model and loss
    raise on rows alone.
    """
    return "rows" if why_rows(model, loss_fn, inputs, targets) else "isolated"


def why_rows(model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any) -> str:
    """Why a user's code cannot be isolated, with a fix if one is known; empty if it can be."""
    frame = dense_frame(model, kept=COMPARED_COORDINATES)
    gradients = partial(per_example_gradients, model, loss_fn, inputs, targets, frame)
    before = _generators()
    alone = torch.cat(gradients(isolation="rows"), 1)
    try:
        isolated = torch.cat(gradients(isolation="isolated"), 1)
    except Exception as error:  # torch has no rule for it under vmap
        reason = f"not isolated, because under vmap: {first_words(error)}"
        for words, fix in FIXES.items():
            if words in str(error):
                return f"{reason}; {fix}"
        return reason
    if model in DRAW_TOGETHER:
        return f"not isolated, because draws by python or numpy would be shared; {DRAWN}"
    lengths = alone.norm(dim=1)
    close = (isolated - alone).norm(dim=1) <= CLOSE * lengths + SMALLEST
    draws = before != _generators()
    if draws or bool((close | ~lengths.isfinite()).all()):
        return ""
    return "not isolated, because under vmap its gradients are not those of each example alone"


def first_words(error: Exception) -> str:
    """Type and first sentence of an error, with the line of the user's code that raised it."""
    first = RuntimeError(str(error).partition(". ")[0]).with_traceback(error.__traceback__)
    return describe(first).replace("RuntimeError", type(error).__name__, 1)


def word_on(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    level: Isolation,
    most: int,
    option: str = "-c isolation=checked (isolation='checked' in Python)",
) -> str:
    """The message about a user's code at a level (``slow_word``), from passes over made-up rows.

    most: examples of the largest batch.
    option: as in ``slow_word``.
    """
    reason = ""
    if level == "rows":
        try:
            reason = why_rows(model, loss_fn, inputs, targets)
        except Exception as error:
            reason = f"it fails on the rows that are tried: {first_words(error)}"
    factor = least_slowdown(partial(slowdown, model, loss_fn, inputs, targets, level, most))
    return slow_word(level, factor, option, reason)


def least_slowdown(measure: Callable[[], float | None]) -> float | None:
    """The least of some measured slowdowns; None if ``measure`` has none.

    A first pass also compiles, and a busy machine makes passes longer: a slowdown that a user reads
    about is measured ``MOST_MEASURES`` times. Models that are not slow are measured once.
    """
    least = measure()
    for _ in range(1, MOST_MEASURES):
        if least is None or least <= SLOW_FACTOR:
            break
        again = measure()
        least = least if again is None else min(least, again)
    return least


def slowdown(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, level: Isolation, most: int
) -> float | None:
    """The time of a pass at a level, over that of one at ``checked`` (the whole batch at once).

    Both are of ``most`` examples: the given rows, repeated. None for a model that does not run on a
    batch.
    """
    frame = dense_frame(model)
    count = batch_size(inputs, targets)

    def seconds(level: Isolation, size: int) -> float:
        rows = torch.arange(size) % count
        return _seconds(model, loss_fn, rows_of(inputs, rows), rows_of(targets, rows), frame, level)

    try:
        at_level = seconds_at(partial(seconds, level), most)
        return at_level / seconds_at(partial(seconds, "checked"), most)
    except Exception:  # a model that runs on one example only
        return None


def seconds_at(seconds: Callable[[int], float], most: int) -> float:
    """The time of a pass over ``most`` examples, measured or extrapolated.

    Batches grow until a pass takes ``PASS_SECONDS``. Then the time is on the line through the last
    two sizes. seconds: measures the time of a pass over a number of examples.
    """
    size, time_of_size, slope = 1, seconds(1), 0.0
    while size < most and (time_of_size < PASS_SECONDS or size == 1):
        smaller, time_of_smaller = size, time_of_size
        size = min(BATCH_GROWTH * size, most)
        time_of_size = seconds(size)
        slope = max(0.0, time_of_size - time_of_smaller) / (size - smaller)
    return time_of_size + slope * max(0, most - size)


def _seconds(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, frame: Frame, level: Any
) -> float:
    """The time of the shortest of some passes: other programs or a compiler make passes longer."""
    times: list[float] = []
    while len(times) < 2 or (len(times) < MOST_PASSES and sum(times) < TIMED_SECONDS):
        start = time.perf_counter()
        block_gradients(model, loss_fn, inputs, targets, frame, isolation=level)
        times.append(time.perf_counter() - start)
    return min(times)


def dense_frame(model: nn.Module, kept: int | None = None) -> Frame:
    """The frame of all trainable parameters without carriers.

    kept: coordinates of each parameter, at most, in equal distances; None for all.
    """
    coordinates = tuple(
        Coordinates(name=n, shape=tuple(p.shape)) for n, p in trainable(model).items()
    )
    blocks = make_blocks(coordinates)
    if kept is not None:
        blocks = tuple(
            replace(block, keep=Keep(axis=None, index=spaced(block.size, kept))) for block in blocks
        )
    return Frame(coordinates=coordinates, blocks=blocks)


def _generators() -> tuple[Any, ...]:
    """The states of the generators of torch, python and numpy on the CPU."""
    state: Tensor = torch.get_rng_state()
    return *states_of_python(), state.numpy().tobytes()
