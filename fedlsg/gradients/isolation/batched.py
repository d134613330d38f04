"""From inside of ``vmap`` to the tensors of the batch and back, in some 30 microseconds a layer.

torch offers the same as ``torch.autograd.Function.vmap``, at twenty times the cost of a call. These
names of torch's ``functorch`` are not public: ``tests/fedlsg/gradients/isolation`` fails where a
version of torch changes them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch._C import _functorch
from torch._functorch import autograd_function
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.func import vmap

from fedlsg.user_code.library import own_code


def for_each_example(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a batch that calls ``function`` on the tensors of one example; random draws
    differ.

    Raises RuntimeError where torch has no rule for its code under ``vmap``, and for a rule of a
    user's own, the ``vmap`` of an ``autograd.Function``: it would get the tensors of the batch.
    """
    mapped, by_rule = (
        vmap(function, randomness="different"),
        autograd_function.custom_function_call_vmap_helper,
    )

    def by_own_rule(
        interpreter: Any, rule: Callable[..., Any], operator: Any, *given: Any, **named: Any
    ) -> Any:
        if own := _own_code(rule):
            raise RuntimeError(f"a rule for vmap of one's own sees all examples: {own}")
        return by_rule(interpreter, rule, operator, *given, **named)

    def of_batch(*given: Any) -> Any:
        with patch.object(autograd_function, "custom_function_call_vmap_helper", by_own_rule):
            return mapped(*given)

    return of_batch


@lru_cache(maxsize=64)
def _own_code(rule: Callable[..., Any]) -> str | None:
    return own_code(rule)


def examples_alone(x: Tensor) -> bool:
    """Whether a tensor is one example's, in the innermost ``vmap``, and in no other one."""
    if not _functorch.is_batchedtensor(x):
        return False
    return not _functorch.is_functorch_wrapped_tensor(_functorch.get_unwrapped(x))


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
    batch: Tensor = _functorch.get_unwrapped(t)
    return batch.movedim(_functorch.maybe_get_bdim(t), 0)


def of_example(t: Tensor, *, level: int) -> Tensor:
    """One example's tensor of a batch (B, *example)."""
    example: Tensor = _functorch._add_batch_dim(t, 0, level)
    return example
