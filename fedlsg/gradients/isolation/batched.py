"""From one example's tensors under ``vmap`` to those of the batch and back, at low cost.

The way takes some 30 microseconds a layer. torch offers the same as
``torch.autograd.Function.vmap``, at twenty times the cost of a call. These names of torch's
``functorch`` are not public: ``tests/fedlsg/gradients/isolation`` fails where a version of torch
changes them.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, overrides
from torch._C import _functorch
from torch._functorch import autograd_function, eager_transforms
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.func import vmap
from torch.utils import _python_dispatch
from torch.utils._device import DeviceContext

from fedlsg.user_code.library import own_code
from fedlsg.user_code.process import own_kernels, own_operators, tracers


def for_each_example(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a batch that calls ``function`` on the tensors of one example.

    Random draws differ from example to example.
    Raises RuntimeError where torch has no rule for its code under ``vmap``, and for code that would
    get the tensors of the batch: a user's own rule for vmap (of an ``autograd.Function``, or of an
    operator), a mode, hooks on saved tensors, ``torch.func.debug_unwrap``, the text of a tensor, a
    user's own operator, which torch runs for one example after the other.
    """
    mapped = vmap(function, randomness="different")

    def of_batch(*tensors: Any) -> Any:
        saved = [(module, name, getattr(module, name)) for module, name, _ in WAYS_OUT]
        operators = [(op._backend_fns, dict(op._backend_fns)) for op in own_operators()]
        for module, name, refusing in WAYS_OUT:
            setattr(module, name, refusing)
        for kernels, _ in operators:
            kernels.update(dict.fromkeys(kernels, _refuse_operator))
        try:
            return mapped(*tensors)
        finally:
            for module, name, original in saved:
                setattr(module, name, original)
            for kernels, originals in operators:
                kernels.update(originals)

    return of_batch


def _refuse_own(*things: Any) -> None:
    """Raise RuntimeError if one of the things is a user's code."""
    for thing in things:
        if code := own_code(thing):
            raise RuntimeError(f"under vmap this would see all examples: {code}")


def _check_rule(**info: Any) -> Any:
    """torch's ``VmapInfo``, which torch makes just before it calls a rule for vmap.

    The rule is the local variable ``vmap_function`` of the caller.
    """
    _refuse_own(sys._getframe(1).f_locals["vmap_function"])
    return VMAP_INFO(**info)


def _check_mode(push: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """torch's function ``push`` that enters a mode, but not one of a user's."""

    def refusing(mode: Any) -> Any:
        _refuse_own(mode)
        return push(mode)

    return refusing


def _check_hooks(pack: Any, unpack: Any) -> Any:
    _refuse_own(pack, unpack)
    return PUSH_HOOKS(pack, unpack)


def _refuse_operator(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError("an operator of your own would see all examples, one after the other")


def _refuse_unwrap(*args: Any) -> NoReturn:
    raise RuntimeError("torch.func.debug_unwrap, or a tensor's text, would give all examples")


UNWRAP_NAMES = (
    "get_unwrapped",
    "_remove_batch_dim",
    "_vmap_decrement_nesting",
    "pop_dynamic_layer_stack",
)
"""Functions of ``torch._C._functorch`` that leave ``vmap``. torch imported them by name before, so
that they are replaced for users' code and texts of tensors alone.
"""
UNWRAP = _functorch.get_unwrapped
VMAP_INFO = autograd_function.VmapInfo
PUSH_HOOKS = torch._C._autograd._push_saved_tensors_default_hooks
WAYS_OUT: tuple[tuple[Any, str, Any], ...] = (
    (autograd_function, "VmapInfo", _check_rule),
    (_python_dispatch, "_push_mode", _check_mode(_python_dispatch._push_mode)),
    (overrides, "_push_mode", _check_mode(overrides._push_mode)),
    (torch._C._autograd, "_push_saved_tensors_default_hooks", _check_hooks),
    (eager_transforms, "get_unwrapped", _refuse_unwrap),
    *((_functorch, name, _refuse_unwrap) for name in UNWRAP_NAMES),
)
"""Functions by which code inside ``vmap`` could get the tensors of the batch: module, name, and the
function that replaces it during the pass.
"""


def refuse_process() -> None:
    """Raise ValueError for code of a user that is on around the pass and sees all examples.

    Such code is a mode, hooks on saved tensors, a trace function, or a kernel of an operator.
    """
    if kernels := own_kernels():
        raise ValueError(
            f"{', '.join(kernels)}: code of yours that torch runs in place of an operator, and "
            "what it keeps cannot be put back after an example; remove it, or define an operator "
            "by torch.library.custom_op"
        )
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    around = [
        *overrides._get_current_function_mode_stack(),
        *_python_dispatch._get_current_dispatch_mode_stack(),
        *(hooks or ()),
        *filter(None, tracers()),
    ]
    for thing in around:
        if type(thing) is DeviceContext:  # torch.set_default_device, on in every pass
            continue
        if code := own_code(thing):
            raise ValueError(
                f"{code}: a mode of torch, hooks on saved tensors, or a function of sys.settrace "
                "or sys.setprofile, that are on around the step see all examples at once; leave "
                "them before the step"
            )


def examples_alone(x: Tensor) -> bool:
    """Whether a tensor is one example's, in the innermost ``vmap``, and in no other one."""
    if not _functorch.is_batchedtensor(x):
        return False
    return not _functorch.is_functorch_wrapped_tensor(UNWRAP(x))


@contextmanager
def outside() -> Iterator[int]:
    """Inside the context, code runs outside of the innermost ``vmap``, whose level it gives."""
    interpreter = retrieve_current_functorch_interpreter()
    level = interpreter.level()
    with interpreter.lower():
        yield level


def of_batch(t: Tensor, *, level: int, size: int) -> Tensor:
    """The tensor of the batch, (B, *example), from one example's tensor.

    A value that all examples share is repeated.
    """
    if _functorch.maybe_get_level(t) != level or not _functorch.is_batchedtensor(t):
        return t.expand(size, *t.shape)
    batch: Tensor = UNWRAP(t)
    return batch.movedim(_functorch.maybe_get_bdim(t), 0)


def of_example(t: Tensor, *, level: int) -> Tensor:
    """One example's tensor of a batch (B, *example)."""
    example: Tensor = _functorch._add_batch_dim(t, 0, level)
    return example
