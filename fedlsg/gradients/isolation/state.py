"""What a forward pass writes into a model is put back after the pass: no example can read another
one's trace.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

CONTAINERS = (list, dict, set, deque)
TABLES = ("_parameters", "_buffers", "_modules")


@contextmanager
def forgetting(model: nn.Module) -> Iterator[None]:
    """Inside, forward passes may write to the model; afterwards its attributes and buffers are as
    they were.

    Put back are attributes of all modules, the members of lists, dicts and sets that are
    attributes, and the values of buffers. Not put back: what forward writes to global variables,
    closures and objects of other classes.
    """
    spaces = [(vars(module), dict(vars(module))) for module in model.modules()]
    members = [(c, list(c.items() if isinstance(c, dict) else c)) for c in _containers(spaces)]
    values = [(buffer, buffer._version, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for space, before in spaces:
            if len(space) != len(before) or any(
                space.get(k, space) is not v for k, v in before.items()
            ):
                space.clear()
                space.update(before)
        for container, held in members:
            _refill(container, held)
        with torch.no_grad():
            for buffer, version, value in values:
                if buffer._version != version:
                    buffer.copy_(value)


def _containers(spaces: list[tuple[dict[str, Any], dict[str, Any]]]) -> Iterator[Any]:
    """Containers that are attributes: of torch's own only the tables, which a forward may fill."""
    for _, space in spaces:
        for name, value in space.items():
            if isinstance(value, CONTAINERS) and (name in TABLES or not name.startswith("_")):
                yield value


def _refill(container: Any, before: list[Any]) -> None:
    now = list(container.items() if isinstance(container, dict) else container)
    if len(now) == len(before) and all(_same(a, b) for a, b in zip(now, before, strict=True)):
        return
    container.clear()
    (container.update if isinstance(container, dict | set) else container.extend)(before)


def _same(now: Any, before: Any) -> bool:
    if isinstance(now, tuple) and isinstance(before, tuple) and not isinstance(now, Tensor):
        return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
    return now is before
