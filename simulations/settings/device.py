"""Where a process computes. The setting ``device`` travels as it was given: each process resolves ``auto`` for itself.

So a server without a GPU may have clients with one. Secret and public draws are made on the CPU on every device.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch

from simulations.settings.run import Device


def device_of(wanted: Device) -> str:
    """``"cpu"`` or ``"cuda"``: under ``"auto"`` CUDA if torch finds it in this process.

    "cuda" is torch's current device: of several GPUs, the one that Ray or CUDA_VISIBLE_DEVICES puts first.
    Raises ValueError for ``"cuda"`` where torch finds none.
    """
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise ValueError(
            "device 'cuda' was requested, but torch finds no CUDA device here; use --device cpu, or auto to take one "
            "where it is"
        )
    return "cuda" if there and wanted != "cpu" else "cpu"


def own_draws(device: str) -> AbstractContextManager[Any]:
    """Inside, seeds and draws of torch's own generators leave those outside as they were."""
    return torch.random.fork_rng(devices=[] if device == "cpu" else [torch.cuda.current_device()])


def seed_draws(seed: int, device: str) -> None:
    """Seed the generators of the CPU and of the device."""
    torch.default_generator.manual_seed(seed)
    if device == "cuda":
        torch.cuda.manual_seed(seed)
