"""Tensors in nested tuples, lists and dicts. torch's own functions for this leave the tensors to the collector."""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors, in order."""
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return [t for item in items for t in tensors_in(item)]


def map_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """The same structure with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = copy.copy(value)
        for key, item in value.items():
            changed[key] = map_tensors(change, item)
        return changed
    if not isinstance(value, tuple | list) or not tensors_in(value):
        return value
    items = [map_tensors(change, item) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
