"""Where a process computes. The setting ``device`` travels as it was given: each process resolves ``auto`` for itself.

So a server without a GPU may have clients with one. Secret and public draws are made on the CPU on every device.
"""

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
