"""A CUDA device that is pretended on a machine without one: tensors carry it as a mark, arithmetic
runs on the CPU.

It refuses what a CUDA device refuses: operands on two devices, a CPU generator for a draw on the
device, numpy of a tensor there. It shows neither speed nor rounding nor memory nor streams;
``pytest -m gpu`` is for those.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
FACTORIES = (
    "empty",
    "zeros",
    "ones",
    "full",
    "arange",
    "tensor",
    "as_tensor",
    "linspace",
    "eye",
    "empty_strided",
)
LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
DRAWS = ("rand", "randn", "randint", "randperm")
NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")
INDEXED = (
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_unsafe_index",
    "aten::_index_put_impl_",
)
WAITING = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::equal",
)
CROSSING = ("aten::copy_", "aten::set_", "aten::set_data", "aten::lift_fresh", "aten::_copy_from")


def marked(t: Tensor) -> bool:
    """Whether a tensor is on the pretended device."""
    return t.layout == torch.strided and getattr(t.untyped_storage(), "pretended", False)


def mark(value: Any) -> Any:
    """Put tensors on the pretended device, in place."""
    for t in tree_leaves(value):
        if isinstance(t, Tensor):
            t.untyped_storage().pretended = True  # type: ignore[attr-defined]
    return value


class Checked(TorchDispatchMode):
    """Results are where operands are; operands on two devices are refused, as torch does on a real
    one.

    ``operations``: how many there were on the device. ``waits``: for what the host waits until the
    device is done, or is sent to it from memory that is not pinned.
    """

    operations = 0

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().split(".")[0]
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        there = [marked(t) for t in tensors if t.ndim or len(tensors) == 1]
        if name in INDEXED:
            there = there[:1] if there[:1] == [True] else there
        if name not in CROSSING and len(set(there)) > 1:
            raise RuntimeError(
                f"expected all tensors of {name} on the same device, found cuda:0 and cpu"
            )
        masks = name in INDEXED and any(t.dtype == torch.bool for t in tensors[1:])
        if any(there) and (name in WAITING or masks or (name == "aten::copy_" and not all(there))):
            self.waits[name] += 1
        on_device = any(there) or (not there and any(map(marked, tensors)))
        generator = kwargs.get("generator")
        if on_device and generator is not None:
            raise RuntimeError(
                f"{name}: expected a 'cuda' device type for generator but found 'cpu'"
            )
        self.operations += on_device
        result = func(*args, **kwargs)
        return mark(result) if on_device and name not in CROSSING else result


def target(device: Any) -> torch.device | None:
    """The device that an argument names; None for what names none."""
    if isinstance(device, Tensor):
        return device.device
    if isinstance(device, str | torch.device):
        return torch.device(device)
    return None


@contextmanager
def pretended_cuda(patch: pytest.MonkeyPatch) -> Iterator[Checked]:
    """Inside, ``torch.cuda.is_available()``, and "cuda" is a device that tensors can be on."""
    mode = Checked()
    patch.setattr("fedlsg.gradients.isolation.passes.refuse_process", lambda: None)  # it is a mode
    there = _moves(patch, mode.waits)
    _factories(patch, there)
    for name, value in {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "synchronize": lambda device=None: None,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "get_device_name": lambda device=None: "pretended",
        "is_bf16_supported": lambda: True,
        "get_rng_state": lambda device=None: torch.zeros(1, dtype=torch.uint8),
        "set_rng_state": lambda state, device=None: None,
        "mem_get_info": lambda device=None: (2**34, 2**35),
    }.items():
        patch.setattr(torch.cuda, name, value)
    with mode:
        yield mode


def _moves(patch: pytest.MonkeyPatch, waits: Counter[str]) -> Callable[[Tensor], torch.device]:
    plain = {
        name: getattr(Tensor, name) for name in ("to", "numpy", "__array__", "pin_memory", "tolist")
    }

    def device(t: Tensor) -> torch.device:
        return CUDA if marked(t) else (CPU if t.is_cpu else torch.device("meta"))

    def to(t: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        named = [a for a in (*args, kwargs.get("device")) if target(a) is not None]
        where = target(named[0]) if named else None
        types = [a for a in args if isinstance(a, torch.dtype)] + [
            a.dtype for a in args if isinstance(a, Tensor)
        ]
        rest = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
        rest |= {"dtype": types[0]} if types else {}
        if where is None or where.type == "meta" or device(t).type == "meta":
            return plain["to"](t, *args, **{k: v for k, v in kwargs.items()})
        crosses = (where.type == "cuda") != marked(t)
        waits["to cuda" if where.type == "cuda" else "to cpu"] += crosses and not kwargs.get(
            "non_blocking"
        )
        found = (
            plain["to"](t, **rest, copy=True)
            if crosses
            else (plain["to"](t, **rest) if rest else t)
        )
        if crosses:
            found.untyped_storage().pretended = where.type == "cuda"  # type: ignore[attr-defined]
        elif found is not t and marked(t):
            mark(found)
        return found

    def numpy(t: Tensor, *args: Any, how: str, **kwargs: Any) -> Any:
        if marked(t):
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first"
            )
        return plain[how](t, *args, **kwargs)

    patch.setattr(Tensor, "device", property(device), raising=False)
    patch.setattr(Tensor, "is_cuda", property(marked), raising=False)
    patch.setattr(Tensor, "to", to)
    patch.setattr(Tensor, "cpu", lambda t: to(t, "cpu"))
    patch.setattr(Tensor, "cuda", lambda t, *_, **__: to(t, "cuda"))
    patch.setattr(Tensor, "pin_memory", lambda t: t)
    patch.setattr(Tensor, "tolist", lambda t: plain["tolist"](to(t, "cpu")))
    for how in ("numpy", "__array__"):
        patch.setattr(Tensor, how, functools.partialmethod(numpy, how=how))
    return device


def _factories(patch: pytest.MonkeyPatch, device: Callable[[Tensor], torch.device]) -> None:
    def made(create: Any, like: bool) -> Any:
        @functools.wraps(create)
        def factory(*args: Any, **kwargs: Any) -> Tensor:
            where = kwargs.get("device")
            if where is None or torch.device(where).type == "meta":
                return create(*args, **kwargs)
            found: Tensor = create(*args, **{**kwargs, "device": "cpu"})
            if torch.device(where).type == "cuda":
                return mark(found)
            found.untyped_storage().pretended = False  # type: ignore[attr-defined]
            return found

        return factory

    for name in (*FACTORIES, *DRAWS, *LIKE):
        patch.setattr(torch, name, made(getattr(torch, name), name in LIKE))
    for name in NEW:
        patch.setattr(Tensor, name, made(getattr(Tensor, name), True))
