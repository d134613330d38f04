"""From inside of ``vmap`` to the tensors of the batch and back, in some 30 microseconds a layer.

torch offers the same as ``torch.autograd.Function.vmap``, at twenty times the cost of a call. These
names of torch's ``functorch`` are not public: ``tests/fedlsg/gradients/isolation`` fails where a
version of torch changes them.
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
    """The function of a batch that calls ``function`` on the tensors of one example; random draws
    differ.

    Raises RuntimeError where torch has no rule for its code under ``vmap``, and for what would get
    the tensors of the batch: a rule for vmap of a user's own (of an ``autograd.Function``, or of an
    operator), a mode, hooks on saved tensors, ``torch.func.debug_unwrap``, the text of a tensor. So
    for operators of a user's own, which torch runs for one example after the other.
    """
    mapped = vmap(function, randomness="different")

    def of_batch(*given: Any) -> Any:
        saved = [(module, name, getattr(module, name)) for module, name, _ in WAYS_OUT]
        operators = [(op._backend_fns, dict(op._backend_fns)) for op in own_operators()]
        for module, name, refusing in WAYS_OUT:
            setattr(module, name, refusing)
        for kernels, _ in operators:
            kernels.update(dict.fromkeys(kernels, _operator))
        try:
            return mapped(*given)
        finally:
            for module, name, original in saved:
                setattr(module, name, original)
            for kernels, originals in operators:
                kernels.update(originals)

    return of_batch


def _refuse_own(*things: Any) -> None:
    for thing in things:
        if code := own_code(thing):
            raise RuntimeError(f"under vmap this would see all examples: {code}")


def _rule(**given: Any) -> Any:
    """In place of what torch tells a rule for vmap, just before it calls it."""
    _refuse_own(sys._getframe(1).f_locals["vmap_function"])
    return VMAP_INFO(**given)


def _mode(push: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def refusing(mode: Any) -> Any:
        _refuse_own(mode)
        return push(mode)

    return refusing


def _hooks(pack: Any, unpack: Any) -> Any:
    _refuse_own(pack, unpack)
    return PUSH_HOOKS(pack, unpack)


def _operator(*given: Any, **named: Any) -> NoReturn:
    raise RuntimeError("an operator of your own would see all examples, one after the other")


def _unwrap(*given: Any) -> NoReturn:
    raise RuntimeError("torch.func.debug_unwrap, or a tensor's text, would give all examples")


OUT = (
    "get_unwrapped",
    "_remove_batch_dim",
    "_vmap_decrement_nesting",
    "pop_dynamic_layer_stack",
)
"""Functions of torch's that leave ``vmap``; torch itself has them by their names, but for texts."""
UNWRAP = _functorch.get_unwrapped
VMAP_INFO = autograd_function.VmapInfo
PUSH_HOOKS = torch._C._autograd._push_saved_tensors_default_hooks
WAYS_OUT: tuple[tuple[Any, str, Any], ...] = (
    (autograd_function, "VmapInfo", _rule),
    (_python_dispatch, "_push_mode", _mode(_python_dispatch._push_mode)),
    (overrides, "_push_mode", _mode(overrides._push_mode)),
    (torch._C._autograd, "_push_saved_tensors_default_hooks", _hooks),
    (eager_transforms, "get_unwrapped", _unwrap),
    *((_functorch, name, _unwrap) for name in OUT),
)
"""What leads from inside of ``vmap`` to the tensors of the batch: module, name, what refuses it."""


def refuse_process() -> None:
    """Raise ValueError for a user's mode, hooks on saved tensors or trace function around the pass,
    and for what operators run of a user's.
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
    """The tensor of the batch, (B, *example), of one example's; copies of a value that all examples
    share.
    """
    if _functorch.maybe_get_level(t) != level or not _functorch.is_batchedtensor(t):
        return t.expand(size, *t.shape)
    batch: Tensor = UNWRAP(t)
    return batch.movedim(_functorch.maybe_get_bdim(t), 0)


def of_example(t: Tensor, *, level: int) -> Tensor:
    """One example's tensor of a batch (B, *example)."""
    example: Tensor = _functorch._add_batch_dim(t, 0, level)
    return example
