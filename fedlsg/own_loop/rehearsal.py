"""Before anything is charged: no examples are mixed, and a whole step runs on made-up rows; its errors in words."""

import math
import os
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.gradients import Batch as Inputs
from fedlsg.gradients import LossFunction, batch_size
from fedlsg.gradients.supported import UnsupportedLayerError
from fedlsg.method import Batch, LocalTraining, Positions
from fedlsg.own_loop.alone import check_batches, same_function
from fedlsg.own_loop.batches import guarded, named, rows_of
from fedlsg.own_loop.examples import check_example, check_synthetic, made_up
from fedlsg.privacy import BudgetError, LedgerError
from fedlsg.randomness import own_draws
from fedlsg.restored import restored
from fedlsg.row_checks import FIX, check_extremes, check_numbers, check_targets, fields, model_outputs, on_cpu
from fedlsg.training.local import Shape
from fedlsg.turn import alone

ROOT = Path(__file__).parents[2]
OURS = [str(ROOT / name) + os.sep for name in ("fedlsg", "strategies", "simulations")]
LIBRARIES = ("site-packages", "dist-packages", "<string>", sysconfig.get_path("stdlib") + os.sep, *OURS)
"""What paths of files that are not the user's own code contain."""


def sizes_of(local: LocalTraining, shape: Shape, num_examples: int) -> list[int]:
    """Batch sizes that a rehearsal takes: none, and a full microbatch with a rest where batches are that large."""
    most = min(num_examples, math.ceil(local.expected_batch + 6 * math.sqrt(local.expected_batch)))
    return [0, shape.size + 1 if most > shape.size else most]


def check_moved(model: nn.Module) -> None:
    """Raise ValueError for weights that a step on made-up rows left infinite or NaN, as averages in float16 do."""
    for name, p in model.named_parameters():
        if p.requires_grad and not p.isfinite().all():
            raise ValueError(
                f"one step leaves weights that are not finite ({name}, {p.dtype}): keep weights in float32 "
                "(precision='bfloat16' runs the pass in fewer bits), or take a smaller learning_rate"
            )


def repeated(inputs: Inputs, targets: Inputs) -> Batch:
    """A batch function that gives some rows over and over."""
    count = batch_size(inputs, targets)

    def batch(positions: Positions) -> tuple[Any, Any]:
        return rows_of(inputs, positions % count), rows_of(targets, positions % count)

    return batch


def form_of(part: Inputs) -> tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]:
    """Names, types and shapes of one example."""
    return tuple((name, value.dtype, tuple(value.shape[1:])) for name, value in fields(part))


@torch.no_grad()
def check_rows(model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Inputs) -> None:
    """Raise ValueError, naming the row, for examples that a step would be charged for and then fail on.

    Where the model fails on made-up rows, nothing is said here: the rehearsal of the first step says why.
    """
    check_numbers(inputs, "training", fix=f"{FIX}; a batch function of your own is not looked at")
    cpu = next(model.parameters()).device.type == "cpu"
    with alone(), restored(model, loss), own_draws("cpu"):
        here = model if cpu else deepcopy(model).cpu()
        made, wanted = made_up(_part(inputs, torch.arange(1)), _part(targets, torch.arange(1)))
        try:
            outputs = model_outputs(here, made)
        except Exception:
            return
        try:
            known = bool(on_cpu(loss)(outputs, wanted).isfinite().all())
        except Exception:
            known = False

        def run(rows: Tensor) -> Any:
            return model_outputs(here, _part(inputs, rows))

        check_extremes(run, inputs, "training")
        check_targets(loss, run, targets, "training", known=known)


def _part(part: Any, rows: Tensor) -> Any:
    """Some rows on the CPU."""
    return part[rows].cpu() if isinstance(part, Tensor) else {name: value[rows].cpu() for name, value in part.items()}


class Independence:
    """Checks that no examples are mixed: of the model once in each mode (train, eval) of its modules.

    ``example``: public rows of the owner; without them rows are made up. ``draws``: inside, generators may be drawn
    from. ``clips``: whether there is a clip, which mixing would make useless; without one nothing is checked.
    """

    def __init__(
        self, model: nn.Module, loss: LossFunction, example: tuple[Inputs, Inputs] | None, num_examples: int,
        draws: Callable[[], AbstractContextManager[None]], *, clips: bool,
    ) -> None:  # fmt: skip
        self._model, self._loss, self._example = model, loss, example
        self._num_examples, self._draws = num_examples, draws
        self._batch: Any = None
        self._modes: tuple[bool, ...] | None = None if clips else ()

    def check(self, batch: Callable[[Positions], Any] | None = None) -> None:
        """Raise ValueError, or UnsupportedLayerError, for a batch function or a model that mixes examples.

        On the public example, or on made-up ones: of the two rows of ``batch`` that are read only shapes are used.
        """
        modes = tuple(module.training for module in self._model.modules())
        if batch is not None and self._modes != () and not same_function(batch, self._batch):
            with self._draws(), restored(generators_of=(batch,)):
                check_batches(batch, self._num_examples, next(self._model.parameters()).device.type)
            self._batch = batch
        if self._modes in ((), modes):
            return
        with self._draws():
            if self._example is not None:
                check_example(self._model, self._loss, *self._example)
            elif batch is not None:
                inputs, targets = guarded(batch)(torch.arange(min(2, self._num_examples)))
                check_synthetic(self._model, self._loss, inputs, targets)
        self._modes = modes


def in_words(error: Exception, model: nn.Module, inputs: Inputs, targets: Inputs) -> Exception:
    """The error of a rehearsal: its cause, where it was raised in the user's code, on what. Refusals stay as they are.

    Values of rows are not in it, unless the user's own code puts them there.
    """
    if isinstance(error, UnsupportedLayerError | BudgetError | LedgerError):
        return error
    given = [*named("inputs", inputs), *named("targets", targets)]
    forms = ", ".join(f"{name} {value.dtype} {tuple(value.shape[1:])}" for name, value in given)
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    cause = f"{kind}{str(error).partition(chr(10))[0]}{place_of(error)}"
    types = {p.dtype for p in model.parameters() if p.is_floating_point()}
    other = [(n, v.dtype) for n, v in named("inputs", inputs) if v.is_floating_point() and v.dtype not in types]
    if other and types:
        name, dtype = other[0]
        own = ", ".join(sorted(map(str, types)))
        cause = (
            f"{name} are {dtype} and the model's weights {own}: give both one type, such as inputs.float() ({cause})"
        )
    return ValueError(
        f"{cause}; nothing was charged: a step on made-up rows failed (for one example: {forms}; weights "
        f"{', '.join(sorted(map(str, types)))})"
    )


def place_of(error: BaseException) -> str:
    """ ", in FILE, line N" of the last line of the user's own code that an error passed; empty without one."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not any(lib in f.filename for lib in LIBRARIES)]
    return f", in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
