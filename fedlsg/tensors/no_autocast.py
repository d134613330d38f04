"""Arithmetic in the precision of its operands, also inside a caller's autocast."""

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Switch autocast off; skip the context manager if it is off already, since it costs as much as a small layer."""
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()
