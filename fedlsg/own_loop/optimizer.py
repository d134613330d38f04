"""A user's own optimizer: it must hold exactly what is trained, so that nothing moves by a gradient without noise."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer

from fedlsg.gradients import trainable

Optimizers = Optimizer | Callable[[Any], Optimizer]
"""A torch optimizer over the model's parameters, or a function that makes one from the list of trained parameters."""


def make_own(given: Optimizers, model: nn.Module) -> Optimizer:
    """The optimizer. Raises ValueError if it lacks a trained parameter, has foreign ones, or calls the loss itself."""
    parameters = trainable(model)
    optimizer = given if isinstance(given, Optimizer) else given(list(parameters.values()))
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"expected a torch optimizer, or a function from parameters to one, got {optimizer!r}")
    if isinstance(optimizer, LBFGS):
        raise ValueError("LBFGS evaluates the loss several times in a step: take an optimizer that needs one gradient")
    check_covers(optimizer, parameters, model)
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
