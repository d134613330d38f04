"""A workload's model is built with public initial weights, as a module that nothing else holds.

A run trains it in place, and the next run must start from the first weights. A builder may give one
module each time (``lambda: net``, a cache, a backbone that was loaded once). Trained in place, that
module would carry what a run learned into the next one, whose epsilon says nothing of it.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.config.choices import choose
from fedlsg.privacy.trained_weights import follow
from fedlsg.randomness import alone
from fedlsg.simulations.workloads.base import LoadedWorkload
from fedlsg.user_code.failure import without_exit

Build = Callable[[], Any]
"""Builds a model; a user's function may return something else."""
MAX_DEPTH = 4
"""How many steps from a function to a module are followed: closures, arguments, containers."""


def fresh(build: Build) -> Any:
    """A copy of the module that ``build`` makes, so that the original stays unchanged.

    A module cannot be copied faithfully if a function in it holds the module itself. Then it is
    built a second time, and this one is taken if the two share no memory. Anything but a module is
    returned as it is.
    Raises ValueError for a module that cannot be copied, and shares memory with the second one.
    """
    model = build()
    if not isinstance(model, nn.Module):
        return model
    try:
        copied = deepcopy(model)
        follow(model, copied)
        holders = list(_holders(copied, model))
        if not holders:
            return copied
        why = f"its {holders[0]} is a function that holds the module itself, which a copy would not"
    except Exception as error:
        why = f"it cannot be copied ({type(error).__name__}: {error})"
    again = build()
    if not isinstance(again, nn.Module) or again is model or _memory(again) & _memory(model):
        raise ValueError(
            f"two calls of its function give the same module, or share weights, and {why}: a run "
            "would train it in place, and the next run would not start anew; build all of it in "
            "the function, as model=lambda: MyModel()"
        )
    return again


def _memory(model: nn.Module) -> set[int]:
    """Addresses of the memory of all parameters and buffers."""
    tensors = [*model.parameters(), *model.buffers()]
    return {t.untyped_storage().data_ptr() for t in tensors if t.numel()}


def _holders(copied: nn.Module, model: nn.Module) -> Iterator[str]:
    """Attributes of the copy whose functions reach modules or weights of the original.

    There may be some because a copy shares functions with the original.
    """
    original = {id(module) for module in model.modules()} | {id(p) for p in model.parameters()}
    of_copy = {id(module) for module in copied.modules()}
    for path, module in copied.named_modules():
        for name, value in vars(module).items():
            if name != "_modules" and _reaches(value, original, of_copy):
                yield f"{path}.{name}" if path else name


def _reaches(value: Any, original: set[int], of_copy: set[int], depth: int = MAX_DEPTH) -> bool:
    """Whether a value is one of the ``original`` objects, or holds one in ``depth`` steps.

    original, of_copy: ids. Objects of the copy are not followed: ``_holders`` visits each itself.
    """
    if id(value) in original:
        return True
    is_leaf = isinstance(value, Tensor | nn.Module | str | bytes | int | float)
    if depth == 0 or is_leaf or id(value) in of_copy:
        return False
    inside: list[Any] = []
    if isinstance(value, FunctionType):
        inside = [cell.cell_contents for cell in value.__closure__ or () if _is_bound(cell)]
        inside += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    elif isinstance(value, MethodType):
        inside = [value.__self__]
    elif isinstance(value, partial):
        inside = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, list | tuple):
        inside = list(value)
    return any(_reaches(part, original, of_copy, depth - 1) for part in inside)


def _is_bound(cell: Any) -> bool:
    """Whether a name in a closure has a value."""
    try:
        return cell.cell_contents is not None
    except ValueError:  # the name is not bound yet
        return False


GONE = {
    "h-cnn": "is features=scattering with model=cnn now, the same network on features that are "
    "computed once; commit 479fe119 of November 2026 still runs it"
}
"""What replaces models that settings of old runs name, and that no longer exist."""


def build_model(
    workload: LoadedWorkload, model_name: str | None = None, seed: int = 0
) -> nn.Module:
    """Build a model of the workload, the default one if none is named, on the CPU.

    Guarantee: the initial weights are public: they depend on the model and the seed only, are equal
    in every process, and neither read nor move a global random state. The module is new: what its
    builder keeps is never trained (``fresh``).
    Raises ValueError for an unknown model name or a seed outside [0, 2**63).
    """
    name = workload.default_model if model_name is None else model_name
    if name in GONE and name not in workload.models:
        raise ValueError(f"model {name!r} {GONE[name]}")
    builder = choose(f"model of {workload.name}", name, workload.models)
    if not 0 <= seed < 2**63:
        raise ValueError(f"expected a seed in [0, 2**63), got {seed=}")

    def build() -> Any:
        # torch.manual_seed would also reseed every CUDA generator, which fork_rng(devices=[]) does
        # not restore.
        torch.default_generator.manual_seed(seed)
        return builder()

    with alone(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
        try:
            with without_exit():
                model = fresh(build)
        except (ValueError, OSError, ImportError):
            raise
        except Exception as error:
            raise ValueError(
                f"model {name!r} of workload {workload.name} cannot be built: "
                f"{type(error).__name__}: {error}{_without_arguments(builder)}"
            ) from error
    if not isinstance(model, nn.Module):
        has_model = isinstance(getattr(model, "model", None), nn.Module)
        hint = ", such as its field model" if has_model else ""
        raise ValueError(
            f"model {name!r} of workload {workload.name} is built as {type(model).__name__}: "
            f"return an nn.Module{hint}"
        )
    return model


def _without_arguments(builder: object) -> str:
    """The end of an error about a class of modules, which a run calls without arguments."""
    if not (isinstance(builder, type) and issubclass(builder, nn.Module)):
        return ""
    return f": the class is called without arguments; write model=lambda: {builder.__name__}(...)"
