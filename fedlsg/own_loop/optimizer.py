"""What the owner of a loop brings: an optimizer, and a function that draws the public inputs of a probe.

The optimizer must hold exactly what is trained, so that nothing moves by a gradient without noise.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedlsg.carriers.probe import ProbeSource
from fedlsg.carriers.probe.carrier import on_device_of
from fedlsg.gradients import LossFunction, trainable
from fedlsg.public import name_of
from fedlsg.randomness import own_draws, public_generator

Optimizers = Optimizer | Callable[[Any], Optimizer]
"""A torch optimizer over the model's parameters, or a function that makes one from the list of trained parameters."""


def make_own(given: Optimizers, model: nn.Module) -> Optimizer:
    """The optimizer.

    Raises ValueError if it lacks a trained parameter, has foreign ones, calls the loss itself, or remembers earlier
    steps.
    """
    parameters = trainable(model)
    optimizer = given if isinstance(given, Optimizer) else given(list(parameters.values()))
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"expected a torch optimizer, or a function from parameters to one, got {optimizer!r}")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(optimizer).__name__} evaluates the loss several times in a step: take an optimizer that needs one "
            "gradient"
        )
    check_covers(optimizer, parameters, model)
    check_new(optimizer, parameters)
    return optimizer


def check_covers(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], model: nn.Module) -> None:
    """Raise ValueError unless the optimizer has every trainable parameter of the model, and none of another one."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if missing := [name for name, p in parameters.items() if id(p) not in held]:
        raise ValueError(
            f"the optimizer lacks {', '.join(missing)}, which the method trains: freeze it, or give a function, "
            "optimizer=lambda parameters: ..., which also gets the parameters that the method adds (LoRA)"
        )
    if held - {id(p) for p in model.parameters()}:
        raise ValueError("the optimizer has parameters that the model has not: they would have no gradient")


def check_new(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise ValueError if the optimizer has a state of earlier steps: their gradients had no noise, or other noise.

    Momentum of raw gradients would move the weights by them, and no ledger counts that. State that a new optimizer of
    the class has as well (Adagrad's sums) is none.
    """
    names = {id(p): name for name, p in parameters.items()}
    new = _as_new(optimizer)
    for p, state in optimizer.state.items():
        kept = [key for key, value in state.items() if not _same(value, new.get(p, {}).get(key))]
        if kept:
            raise ValueError(
                f"the optimizer has a state of earlier steps ({', '.join(map(str, kept))} of {names.get(id(p), '?')}): "
                "averages of gradients that no ledger counts would move the weights; give a new optimizer, and to "
                "resume load PrivateStep's own state_dict"
            )
    for name, value in vars(optimizer).items():
        if name in ("state", "param_groups", "defaults"):
            continue
        if isinstance(value, Optimizer):
            check_new(value, parameters)
        elif any(_remembers(t, parameters) for t in _tensors(value)):
            raise ValueError(
                f"the optimizer's {name} has numbers of earlier steps that no ledger counts: give a new optimizer"
            )


def _as_new(optimizer: Optimizer) -> Mapping[Any, Mapping[str, Any]]:
    """The state that a new optimizer of this class and these groups has; empty where it cannot be made."""
    if not optimizer.state:
        return {}
    try:
        make: Any = type(optimizer)
        with torch.no_grad():
            made: Optimizer = make([copy(group) for group in optimizer.param_groups], **optimizer.defaults)
        return made.state
    except Exception:  # a class with arguments of its own
        return {}


def _same(value: Any, new: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(new, Tensor):
        return value.shape == new.shape and torch.equal(value, new)
    return type(value) is type(new) and bool(value == new)


def _remembers(t: Tensor, parameters: Mapping[str, nn.Parameter]) -> bool:
    """Whether a tensor has numbers that are neither zeros nor a copy of weights, as slow weights are."""
    if not t.is_floating_point() or not t.count_nonzero():
        return False
    return not any(t.shape == p.shape and torch.equal(t.to(p), p.detach()) for p in parameters.values())


def _tensors(value: Any, depth: int = 4) -> Iterator[Tensor]:
    """Tensors in an attribute and its containers."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        yield value.detach()
    elif depth and isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part, depth - 1)


def own_source(draw: Callable[[int, torch.Generator], Any], model: nn.Module, loss: LossFunction) -> ProbeSource:
    """The source that draws by a function: inputs alone, of classes as many as the model has outputs, or with targets.

    Raises ValueError where the function does not give two rows of a batch that the model takes.
    """
    name, training = name_of(draw), model.training
    try:
        drawn = draw(2, public_generator(0, "probe", "sizes"))
        if isinstance(drawn, tuple):
            return ProbeSource(name=name, draw=draw, loss=loss)
        inputs = on_device_of(model, drawn)
        with torch.no_grad(), own_draws(next(model.parameters()).device.type):
            outputs: Tensor = model.eval()(**inputs) if isinstance(inputs, dict) else model.eval()(inputs)
        return ProbeSource(name=name, draw=draw, loss=loss, num_classes=outputs.shape[-1])
    except Exception as error:
        raise ValueError(f"probe={name}(2, generator) gives nothing that the model takes: {error}") from error
    finally:
        model.train(training)
