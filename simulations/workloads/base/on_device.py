"""Batches where they are computed: copied through page-locked memory, or taken from a split that is there whole."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from simulations.workloads.base.workload import Inputs, Split

RESIDENT_BYTES = 2**30
"""Most bytes of a split that stays on a device: CIFAR-10's training images have 0.61e9 in float32."""
RESIDENT_SHARE = 8
"""It takes no more than one part in so many of the device's free memory: several workers may share a GPU."""
AT_ONCE = 4096
"""Rows that are prepared at once while a split is copied."""

Fetch = Callable[[Int64[Tensor, " b"]], tuple[Any, Int64[Tensor, " b"]]]


def to_device(inputs: Inputs, device: str) -> Inputs:
    """Inputs of a batch on a device: a tensor, or every tensor of a dict."""
    if isinstance(inputs, Tensor):
        return sent(inputs, device)
    return {name: sent(tensor, device) for name, tensor in inputs.items()}


def sent(t: Tensor, device: str) -> Tensor:
    """A tensor on a device. From the CPU to CUDA it goes through page-locked memory, and nothing waits for it.

    Kernels that are started later wait on the device. Torch keeps the page-locked copy until it has been read.
    """
    if device == "cuda" and t.device.type == "cpu" and t.numel():
        return t.pin_memory().to(device, non_blocking=True)
    return t.to(device)


def fetcher(split: Split, device: str) -> Fetch:
    """``split.batch``, with its results on ``device``.

    A small split of one tensor an example is copied to CUDA once, whole; batches are then taken there.
    Guarantee: the numbers are those of ``split.batch``, and it raises as that does.
    """
    if device == "cpu":
        return split.batch
    if (inputs := _resident(split, device)) is None:
        return lambda rows: _batch(split, rows, device)
    labels = sent(split.labels, device)

    def take(rows: Int64[Tensor, " b"]) -> tuple[Inputs, Int64[Tensor, " b"]]:
        places = sent(split.order(rows), device)  # lengths are equal: the order is the given one
        return inputs[places], labels[places]

    return take


def _batch(split: Split, rows: Int64[Tensor, " b"], device: str) -> tuple[Inputs, Int64[Tensor, " b"]]:
    inputs, targets = split.batch(rows)
    return to_device(inputs, device), sent(targets, device)


def _resident(split: Split, device: str) -> Tensor | None:
    """All inputs on the device; None for texts, which are padded batch by batch, and for a split that is too large."""
    first, _ = split.batch(torch.zeros(1, dtype=torch.int64))
    if split.lengths is not None or not isinstance(first, Tensor):
        return None
    free, _ = torch.cuda.mem_get_info()
    if first.nbytes * len(split) > min(RESIDENT_BYTES, free // RESIDENT_SHARE):
        return None
    whole = torch.empty((len(split), *first.shape[1:]), dtype=first.dtype, device=device)
    for rows in torch.arange(len(split)).split(AT_ONCE):
        inputs, _ = split.batch(rows)
        assert isinstance(inputs, Tensor)
        whole[int(rows[0]) : int(rows[-1]) + 1] = sent(inputs, device)
    return whole
