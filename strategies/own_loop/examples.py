"""Public examples, for what reads shapes, and made-up ones, to check that no examples are mixed
before a charge.
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
def checked_ctc() -> Iterator[None]:
    """Inside, ``torch.ctc_loss`` raises ValueError for class numbers or lengths that end the
    process on a CPU.
    """
    real = torch.ctc_loss

    def checked(
        log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *rest: Any
    ) -> Tensor:
        time, classes = log_probs.shape[0], log_probs.shape[-1]
        most = targets.shape[-1] if targets.ndim > 1 else len(targets)
        for name, value, top in (
            ("targets", targets, classes - 1),
            ("input_lengths", input_lengths, time),
            ("target_lengths", target_lengths, most),
        ):
            lengths = torch.as_tensor(value)
            if lengths.numel() and not 0 <= int(lengths.min()) <= int(lengths.max()) <= top:
                raise ValueError(
                    f"ctc_loss: expected {name} from 0 to {top}, got "
                    f"{int(lengths.min())}..{int(lengths.max())}"
                )
        if targets.ndim == 1 and int(torch.as_tensor(target_lengths).sum()) > most:
            raise ValueError(f"ctc_loss: expected target_lengths that add up to {most} at most")
        return real(log_probs, targets, input_lengths, target_lengths, *rest)

    with patch.object(torch, "ctc_loss", checked):
        yield


ROWS = 7
"""Examples that are made."""
GIVE_EXAMPLE = "give example=(inputs, targets), some public rows"


def check_start(model: nn.Module, method: Method, example: tuple[Batch, Batch] | None) -> None:
    """Raise ValueError for a model that has adapters already, and for pruning that needs an
    example.
    """
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
    """``ROWS`` random rows of the shape, type and device of ``like``, of which no value is read.

    Normal numbers for floating point inputs; 0 or 1, and 1 in the first column, for integers and
    booleans.
    """
    batch: Batch = of_fields({name: _rows(value, name) for name, value in fields_of(like).items()})
    return batch


def _rows(like: Tensor, name: str) -> Tensor:
    generator = public_generator(0, "synthetic", name)
    shape = (ROWS, *like.shape[1:])
    if like.is_floating_point():
        return torch.randn(shape, generator=generator).to(like)
    drawn = torch.randint(2, shape, generator=generator)
    if drawn.ndim > 1 and drawn.shape[1] > 1:
        drawn[:, 0] = 1  # no mask of tokens is empty
    return drawn.to(like)


def check_synthetic(
    model: nn.Module,
    loss: LossFunction,
    inputs: Batch,
    targets: Batch,
    *,
    level: Isolation = "checked",
) -> None:
    """Check on made-up examples of these shapes and types that model and loss mix none.

    ``check_model`` on random rows, and on plain ones that the model and the loss take. No value of
    ``inputs`` is read.
    ``level``: how a step will run this code.
    Raises UnsupportedLayerError for a model that mixes examples, OwnDrawsError for one that seeds
    its random draws; ValueError, asking for public examples, where the model cannot be run on
    made-up ones; or, at ``checked``, on equal ones only.
    """
    try:
        differ = check_rows(model, loss, made_up(inputs, targets), level)
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
    """Check on public rows of the owner, and on plain made-up ones that the model takes, that no
    examples mix.

    Raises UnsupportedLayerError for a model that mixes examples, ValueError for rows that cannot
    show it.
    """
    if not check_rows(model, loss, (inputs, targets), level):
        raise ValueError(
            "expected rows in example=(inputs, targets) that differ from each other: equal ones "
            "hide mixing"
        )


def check_rows(
    model: nn.Module, loss: LossFunction, rows: tuple[Batch, Batch], level: Isolation
) -> bool:
    """``check_model`` on rows, and on plain ones of their form; whether rows ran that differ."""
    with restored(loss), checked_ctc():
        plain = accepted(model, loss, *rows)
        families = [rows] if plain is None else [rows, plain]
        ran = check_model(model, loss, families, level=level)
    inputs = joined([family[0] for family in families])
    return len(ran) > 1 and _differ(each(inputs, lambda t: t[ran]))


def takes(model: nn.Module, loss: LossFunction) -> Takes:
    """Whether a batch runs with finite losses, on copies on the CPU: in float64, or in the model's
    own type.
    """
    copied = copy_of(model).cpu()
    double = copy_of(copied).double()

    def runs(inputs: Batch, targets: Batch) -> bool:
        for part, batch in (
            (double, in_type((inputs, targets), torch.float64)),
            (copied, (inputs, targets)),
        ):
            # whatever a user's code raises on such values
            with suppress(Exception), torch.no_grad(), force_eager():
                if bool(loss(call(part, batch[0]), batch[1]).isfinite().all()):
                    return True
        return False

    return runs


def _differ(rows: Batch) -> bool:
    """Whether some rows differ from others in some input."""
    return any(
        not bool(((t == t[:1]) | (t != t)).all()) for t in fields_of(rows).values() if len(t)
    )


def made_up(inputs: Batch, targets: Batch) -> tuple[Any, Any]:
    """Made-up rows of inputs and targets of these shapes and types, whose values are not read."""
    wanted = synthetic(targets)
    return synthetic(inputs), wanted.sigmoid() if isinstance(
        wanted, Tensor
    ) and wanted.is_floating_point() else wanted


def accepted(
    model: nn.Module, loss: LossFunction, inputs: Batch, targets: Batch
) -> tuple[Any, Any] | None:
    """Plain made-up rows of these shapes and types that model and loss take, each alone; None where
    none is found.
    """
    with restored(loss), checked_ctc():
        rows = Maker(inputs=inputs, targets=targets, takes=takes(model, loss)).rows()
    if rows is None:
        return None
    device = next(model.parameters()).device
    on_device, wanted = (each(part, lambda t: t.to(device)) for part in rows)
    return on_device, wanted


def own_source(
    draw: Callable[[int, torch.Generator], Any], model: nn.Module, loss: LossFunction
) -> ProbeSource:
    """The source that draws by a function: inputs alone, of classes as many as the model has
    outputs, or with targets.

    Raises ValueError where the function does not give two rows of a batch that the model takes.
    """
    if not callable(draw):
        raise ValueError(f"probe={draw!r}: expected a function probe(count, generator)")
    name, training = name_of(draw), model.training
    try:
        drawn = draw(2, public_generator(0, "probe", "sizes"))
        if isinstance(drawn, tuple):
            return ProbeSource(name=name, draw=draw, loss=loss)
        inputs = on_device_of(model, drawn)
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
