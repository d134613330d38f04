"""Public and made-up examples, on which model and loss are checked before a charge.

The checks are that examples are not mixed, and that shapes fit. Made-up examples have the shapes
and types of the data, and no value of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from fedlsg.carriers import Adapted, Lora
from fedlsg.carriers.probe import ProbeSource
from fedlsg.carriers.probe.carrier import on_device_of
from fedlsg.frame.public import name_of
from fedlsg.gradients import Batch, LossFunction
from fedlsg.gradients.hooked_pass.call_layers import in_type
from fedlsg.gradients.hooked_pass.hooked_layers import force_eager
from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError
from fedlsg.gradients.independence import check_model
from fedlsg.gradients.independence.subject import copy_of, joined
from fedlsg.gradients.isolation.levels import Isolation
from fedlsg.gradients.per_example import call
from fedlsg.method import Method
from fedlsg.randomness import own_draws, public_generator
from fedlsg.strategies.own_loop.made_up import Maker, Takes
from fedlsg.tensors import each, fields_of, of_fields
from fedlsg.user_code.failure import depends_on_values, describe
from fedlsg.user_code.objects import restored


@contextmanager
def ctc_checks() -> Iterator[None]:
    """Inside, ``torch.ctc_loss`` raises ValueError for class numbers or lengths out of range.

    Without it they end the process on a CPU.
    """
    ctc_loss = torch.ctc_loss

    def checked(
        log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *rest: Any
    ) -> Tensor:
        time, classes = log_probs.shape[0], log_probs.shape[-1]
        longest = targets.shape[-1]
        for name, value, largest in (
            ("targets", targets, classes - 1),
            ("input_lengths", input_lengths, time),
            ("target_lengths", target_lengths, longest),
        ):
            numbers = torch.as_tensor(value)
            if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) <= largest:
                raise ValueError(
                    f"ctc_loss: expected {name} from 0 to {largest}, got "
                    f"{int(numbers.min())}..{int(numbers.max())}"
                )
        if targets.ndim == 1 and int(torch.as_tensor(target_lengths).sum()) > longest:
            raise ValueError(f"ctc_loss: expected target_lengths that add up to {longest} at most")
        return ctc_loss(log_probs, targets, input_lengths, target_lengths, *rest)

    with patch.object(torch, "ctc_loss", checked):
        yield


ROWS = 7
"""Examples of a made-up batch."""
GIVE_EXAMPLE = "give example=(inputs, targets), some public rows"
"""The remedy in messages about made-up rows."""


def check_start(model: nn.Module, method: Method, example: tuple[Batch, Batch] | None) -> None:
    """Raise ValueError for a model that has adapters already, or pruning that needs an example."""
    if isinstance(method.carrier, Lora) and any(
        isinstance(module, Adapted) for module in model.modules()
    ):
        raise ValueError(
            "the model has LoRA adapters already: build it again, as before the first PrivateStep"
        )
    if example is not None and not (isinstance(example, tuple | list) and len(example) == 2):
        raise ValueError(
            f"example={type(example).__name__}: expected (inputs, targets) of some public rows"
        )
    if method.prune.kind == "synflow" and example is None:
        raise ValueError(
            "prune='synflow' reads the shape of the inputs before the first step: give "
            "example=(inputs, targets), some public or made-up rows, or the setting prune='random'"
        )


def synthetic(like: Batch) -> Batch:
    """``ROWS`` random rows of the shape, type and device of ``like``, of which no value is read."""
    batch: Batch = of_fields(
        {name: random_rows(value, name) for name, value in fields_of(like).items()}
    )
    return batch


def random_rows(like: Tensor, name: str) -> Tensor:
    """Random rows of a field: normal numbers for floats, 0 or 1 for integers and booleans."""
    generator = public_generator(0, "synthetic", name)
    shape = (ROWS, *like.shape[1:])
    if like.is_floating_point():
        return torch.randn(shape, generator=generator).to(like)
    rows = torch.randint(2, shape, generator=generator)
    if rows.ndim > 1 and rows.shape[1] > 1:
        rows[:, 0] = 1  # no mask of tokens is empty
    return rows.to(like)


def check_synthetic(
    model: nn.Module,
    loss: LossFunction,
    inputs: Batch,
    targets: Batch,
    *,
    level: Isolation = "checked",
) -> None:
    """Check on made-up examples of these shapes and types that model and loss mix none.

    The check is ``check_model`` on random rows, and on plain ones that model and loss take. No
    value of ``inputs`` is read. ``level``: of isolation in steps.

    Raises UnsupportedLayerError for a model that mixes examples, OwnDrawsError for one that seeds
    its random draws; ValueError, which asks for public examples, if the model does not run on
    made-up ones, or, at ``checked``, only on equal ones.
    """
    try:
        differ = check_mixing(model, loss, made_up(inputs, targets), level)
    except Exception as error:
        if (
            isinstance(error, UnsupportedLayerError) and error.__cause__ is None
        ) or not depends_on_values(error):
            raise
        raise ValueError(
            f"{describe(error)}; this was on made-up examples of the data's shape: if real ones "
            f"would not fail, {GIVE_EXAMPLE}"
        ) from error
    if not differ and level == "checked":
        raise ValueError(
            "it cannot be checked whether examples mix: the model takes no made-up examples of the "
            f"data's shape and types that differ from each other; {GIVE_EXAMPLE}"
        )


def check_example(
    model: nn.Module,
    loss: LossFunction,
    inputs: Batch,
    targets: Batch,
    *,
    level: Isolation = "checked",
) -> None:
    """Check on public rows of the owner, and on plain made-up ones, that no examples mix.

    Raises UnsupportedLayerError for a model that mixes examples, ValueError for equal rows, which
    cannot show it.
    """
    if not check_mixing(model, loss, (inputs, targets), level):
        raise ValueError(
            "expected rows in example=(inputs, targets) that differ from each other: equal ones "
            "hide mixing"
        )


def check_mixing(
    model: nn.Module, loss: LossFunction, rows: tuple[Batch, Batch], level: Isolation
) -> bool:
    """Run ``check_model`` on rows, and on plain ones of their form.

    Returns whether the model ran on rows that differ.
    """
    with restored(loss), ctc_checks():
        plain = accepted(model, loss, *rows)
        families = [rows] if plain is None else [rows, plain]
        ran = check_model(model, loss, families, level=level)
    inputs = joined([family[0] for family in families])
    return len(ran) > 1 and _differ(each(inputs, lambda tensor: tensor[ran]))


def takes_batch(model: nn.Module, loss: LossFunction) -> Takes:
    """A function that says whether a batch runs with finite losses.

    It runs copies of the model on the CPU: in float64, then in the model's own type.
    """
    own_type = copy_of(model).cpu()
    double = copy_of(own_type).double()

    def runs(inputs: Batch, targets: Batch) -> bool:
        for copied, batch in (
            (double, in_type((inputs, targets), torch.float64)),
            (own_type, (inputs, targets)),
        ):
            # a user's code may raise anything on such values
            with suppress(Exception), torch.no_grad(), force_eager():
                if bool(loss(call(copied, batch[0]), batch[1]).isfinite().all()):
                    return True
        return False

    return runs


def _differ(rows: Batch) -> bool:
    """Whether some row differs from the first in a number that is not NaN."""
    return any(
        not bool(((field == field[:1]) | field.isnan()).all())
        for field in fields_of(rows).values()
        if len(field)
    )


def made_up(inputs: Batch, targets: Batch) -> tuple[Any, Any]:
    """Made-up rows of inputs and targets of these shapes and types, whose values are not read.

    Floating point targets are probabilities.
    """
    random_targets = synthetic(targets)
    if isinstance(random_targets, Tensor) and random_targets.is_floating_point():
        random_targets = random_targets.sigmoid()
    return synthetic(inputs), random_targets


def accepted(
    model: nn.Module, loss: LossFunction, inputs: Batch, targets: Batch
) -> tuple[Any, Any] | None:
    """Plain made-up rows that model and loss take, each alone; None if none is found.

    They have the shapes and types of ``inputs`` and ``targets``, and are on the model's device.
    """
    with restored(loss), ctc_checks():
        rows = Maker(inputs=inputs, targets=targets, takes=takes_batch(model, loss)).rows()
    if rows is None:
        return None
    device = next(model.parameters()).device
    plain_inputs, plain_targets = (each(part, lambda tensor: tensor.to(device)) for part in rows)
    return plain_inputs, plain_targets


def source_of_function(
    draw: Callable[[int, torch.Generator], Any], model: nn.Module, loss: LossFunction
) -> ProbeSource:
    """A source of probes that calls a function for inputs, or for (inputs, targets).

    Inputs alone get random classes, as many as the model has outputs. Raises ValueError unless the
    function gives two rows that the model takes.
    """
    if not callable(draw):
        raise ValueError(f"probe={draw!r}: expected a function probe(count, generator)")
    name, training = name_of(draw), model.training
    try:
        batch = draw(2, public_generator(0, "probe", "sizes"))
        if isinstance(batch, tuple):
            return ProbeSource(name=name, draw=draw, loss=loss)
        inputs = on_device_of(model, batch)
        with torch.no_grad(), own_draws(next(model.parameters()).device.type):
            outputs: Tensor = (
                model.eval()(**inputs) if isinstance(inputs, dict) else model.eval()(inputs)
            )
        return ProbeSource(name=name, draw=draw, loss=loss, num_classes=outputs.shape[-1])
    except Exception as error:
        raise ValueError(
            f"probe={name}(2, generator) gives nothing that the model takes: {error}"
        ) from error
    finally:
        model.train(training)
