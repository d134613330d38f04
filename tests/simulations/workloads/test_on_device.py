"""Batches on a device: the numbers are those of ``Split.batch``; small splits are there whole (a pretended device)."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from simulations.workloads import Split, fetcher, to_device
from tests.fedlsg.support.pretend_cuda import pretended_cuda

ROWS = torch.tensor([4, 0, 4])
IMAGES = Split(
    inputs=np.arange(5 * 6, dtype=np.uint8).reshape(5, 1, 2, 3),
    labels=torch.arange(5) % 2,
    prepare=lambda stored: torch.from_numpy(stored).float() / 7,
)
TEXTS = Split(
    inputs=np.arange(10).reshape(5, 2),
    labels=torch.arange(5) % 2,
    prepare=lambda stored: {"input_ids": torch.from_numpy(stored), "attention_mask": torch.ones(stored.shape)},
    lengths=torch.tensor([2, 2, 1, 2, 1]),
)


@pytest.mark.parametrize("rows", [ROWS, torch.arange(0)])
@pytest.mark.parametrize("split", [IMAGES, TEXTS])
def test_batches_are_those_of_the_split(split, rows, monkeypatch):
    expected = split.batch(rows)
    with pretended_cuda(monkeypatch):
        inputs, targets = fetcher(split, "cuda")(rows)
        for t in (targets, *(inputs.values() if isinstance(inputs, dict) else (inputs,))):
            assert t.device.type == "cuda"
        inputs = {name: t.cpu() for name, t in inputs.items()} if isinstance(inputs, dict) else inputs.cpu()
        assert_close((inputs, targets.cpu()), expected, rtol=0, atol=0)


def test_a_copy_to_cuda_is_page_locked_and_does_not_wait(monkeypatch):
    with pretended_cuda(monkeypatch):
        asked, plain = [], Tensor.to
        monkeypatch.setattr(Tensor, "pin_memory", lambda t: asked.append("pinned") or t)
        monkeypatch.setattr(Tensor, "to", lambda t, *a, **k: asked.append(k) or plain(t, *a, **k))
        there = to_device(torch.ones(2), "cuda")
        assert asked == ["pinned", {"non_blocking": True}]
        assert isinstance(there, Tensor)
        assert to_device(there, "cuda") is there
        assert asked[2:] == [{}]
