"""Arithmetic in the precision of its operands, also inside somebody's autocast."""

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """No autocast. Where there is none, none is switched off: that costs as much as a small layer."""
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()
