"""Gradients of a model that no private step has made: training by them, which no epsilon counts.

The passes of a step write no ``.grad``: they use ``torch.autograd.grad``. So a gradient that
autograd adds to ``.grad`` of a parameter is of other code, such as ``loss.backward()``. A
hook of the parameter refuses it at once, before an optimizer can move the weights. A model that has
such a gradient when its PrivateStep is made was trained just before, and is refused as well.

Not seen: gradients by ``torch.autograd.grad``, weights that are written in other ways, and the
training of a copy. Each step has hooks of its own, which end with it.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from fedlsg.user_code.fingerprint import Watching

_PUBLIC: list[None] = []
"""One entry for each open block of ``public_gradients``. Hooks run in threads of autograd, too."""
_OF_STEPS = WeakIdKeyDictionary()
"""The gradients that steps left in ``.grad``, each with its version."""


@contextmanager
def public_gradients() -> Iterator[None]:
    """Inside, gradients of trained parameters are accepted: by the owner's word of public rows."""
    _PUBLIC.append(None)
    try:
        yield
    finally:
        _PUBLIC.pop()


def check_no_gradient(model: nn.Module) -> None:
    """Raise ValueError if a parameter has a gradient that is not zero and is of no private step."""
    for name, p in model.named_parameters():
        gradient = p.grad
        if gradient is None or _OF_STEPS.get(gradient) == gradient._version:
            continue
        if gradient.is_sparse or gradient.any():
            raise ValueError(
                f"{name} has a gradient in .grad: the model was trained just before, and no "
                "epsilon counts that. Leave this training out (step.step() takes the place of "
                "loss.backward() and optimizer.step()); or, if its rows are public, call "
                "model.zero_grad() first"
            )


def refuse_gradients(step: object, model: nn.Module) -> None:
    """While ``step`` exists, refuse gradients that autograd adds to parameters of its model.

    Also to frozen ones, which other code may unfreeze between two steps.
    """
    for name, p in model.named_parameters():
        if p.is_floating_point() and not p.is_inference():
            frozen = not p.requires_grad
            p.requires_grad_()  # torch takes no hook of a frozen one
            handle = p.register_post_accumulate_grad_hook(Watching(_refuse, name))
            p.requires_grad_(not frozen)
            weakref.finalize(step, handle.remove)


def leave_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Note the gradients that a step has left in ``.grad``, for its owner to read."""
    for p in parameters:
        if p.grad is not None:
            _OF_STEPS[p.grad] = p.grad._version


def _refuse(name: str, parameter: Tensor) -> None:
    """Remove the gradient, and raise ValueError, unless the rows are public."""
    if _PUBLIC:
        return
    parameter.grad = None
    raise ValueError(
        f"backward() adds a gradient to {name}, of a model that a PrivateStep trains: training by "
        "it would be without noise, and no epsilon would count it. Leave it out (step.step() takes "
        "the place of loss.backward() and optimizer.step()); if its rows are public, put it into a "
        "block `with step.public_gradients():`; or take a copy of the model"
    )
