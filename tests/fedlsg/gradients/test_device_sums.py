"""Norms and sums that a GPU reads once: bounds that hold, fewer bytes, and what would break them."""

from functools import reduce
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedlsg.gradients import device_sums
from fedlsg.gradients.device_sums import (
    GROUP_ROUNDING,
    GROUP_ROWS,
    all_digits,
    sum_in_groups,
    upper_norms,
)
from fedlsg.privacy import Mechanism, clip, clip_norms, clipped_sum
from fedlsg.tensors import keeps_digits
from fedlsg.training.local_training import Shape, runs_of

C = 1.0
MECHANISM = Mechanism(kind="dp", clip_norm=C, noise_multiplier=1.0)


@pytest.fixture
def on_device(monkeypatch):
    """The path of a GPU, on the CPU."""
    for place in (clip, clip_norms):
        monkeypatch.setattr(place, "reads_once", lambda block: block.dtype == torch.float32)


def long_norms(rows):
    return torch.linalg.vector_norm(rows.double(), dim=1)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 5000])
@pytest.mark.parametrize("scale", [1e-25, 1e-3, 1.0, 1e15])
def test_norms_are_upper_bounds_and_close(size, scale):
    rows = scale * torch.randn(7, size, generator=torch.Generator().manual_seed(size))
    bound, norms = upper_norms(rows), long_norms(rows)
    assert (bound >= norms).all()
    assert (bound <= norms * (1 + 2e-5) + 1e-16).all()


def test_norms_that_lose_small_squares_are_noticed(monkeypatch):
    """Negative control: squares below the smallest number count in no plain norm in float32."""
    rows = torch.full((1, 4096), 1e-24)
    assert upper_norms(rows) >= long_norms(rows)
    plain = torch.linalg.vector_norm(rows, dim=1).double()
    assert plain < long_norms(rows)


def test_an_example_whose_squares_pass_float32_is_clipped_and_moves_no_others(on_device):
    rows = torch.randn(40, 64)
    rows[3] = 1e25
    rows[4, 5] = torch.nan
    found = clipped_sum([rows], MECHANISM, wide=True, shuffled=64)
    others = [row for row in range(40) if row not in (3, 4)]
    rest = clipped_sum([rows[others]], MECHANISM, wide=True, shuffled=64)
    assert torch.allclose(found - rest, torch.full((64,), 1 / 8).double(), atol=1e-4)


@pytest.mark.parametrize("count", [1, 15, 33, 300])
def test_the_sum_is_the_sum(count, on_device):
    rows = [torch.randn(count, 40, 3).mT, torch.randn(count, 7)]
    found = clipped_sum(rows, MECHANISM, wide=True, shuffled=300)
    assert found.dtype == torch.float64
    flat = torch.cat([rows[0].flatten(1), rows[1]], 1).double()
    exact = (flat * (C / long_norms(flat)).clamp(max=1).unsqueeze(1)).sum(0)
    assert torch.allclose(found, exact, atol=2e-4 * count**0.5, rtol=1e-4)


def moved(rows, shuffled, seed):
    """How far one example more moves the sum, where it takes a random place."""
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(rows) - 1, generator=draw)
    place = int(torch.randint(len(rows), (), generator=draw))
    without = rows[1:][order]
    whole = torch.cat([without, rows[:1]])
    if place < len(without):  # the row of that place goes to the end
        whole[-1], whole[place] = without[place].clone(), rows[0]
    sums = [
        clipped_sum([some], MECHANISM, wide=True, shuffled=shuffled) for some in (whole, without)
    ]
    return float((sums[0] - sums[1]).norm())


def adversarial(count, size=512):
    """A long row, next to which the others vanish in float32: with it they add nothing, against it
    without it.
    """
    rows = torch.full((count, size), -0.99 * 2.0**-29)
    rows[0] = 3.0
    return rows


@pytest.mark.parametrize("others", [adversarial, lambda count: torch.randn(count, 512) * 3])
def test_one_example_moves_the_sum_by_the_clip_norm_at_most(others, on_device):
    rows = others(2000)
    assert max(moved(rows, 2000, seed) for seed in range(3)) <= C


def test_a_sum_of_all_rows_in_float32_moves_by_more(on_device, monkeypatch):
    """Negative control: one sum of all rows rounds away more than the clip keeps free."""
    monkeypatch.setattr(
        clip,
        "sum_in_groups",
        lambda factors, rows, most: reduce(torch.add, factors.unsqueeze(1) * rows).double(),
    )
    rows = adversarial(4000)
    first = clipped_sum([rows], MECHANISM, wide=True, shuffled=4000)
    assert float((first - clipped_sum([rows[1:]], MECHANISM, wide=True, shuffled=4000)).norm()) > C


def test_an_example_more_changes_two_groups_and_no_other_bit(monkeypatch):
    rows = torch.randn(100, 512)
    kept: list[torch.Tensor] = []
    bmm = torch.bmm
    monkeypatch.setattr(device_sums.torch, "bmm", lambda a, b: kept.append(bmm(a, b)) or kept[-1])
    sum_in_groups(torch.ones(100), rows, 128)
    swapped = rows[:99].clone()
    swapped[20] = rows[99]
    sum_in_groups(torch.ones(99), swapped, 128)
    differ = [int(g) for g in range(8) if not torch.equal(kept[0][g], kept[1][g])]
    assert differ == [20 // GROUP_ROWS, 99 // GROUP_ROWS]
    assert kept[0].shape == kept[1].shape


def test_groups_that_a_user_sorts_stay_in_the_random_order_of_the_batch():
    """The sorted place of one example more would move all rows behind it to other groups."""
    batch = torch.tensor([9, 2, 7, 4, 1, 6])

    def by_parity(positions):
        ordered = positions.sort().values
        return [ordered[ordered % 2 == rest] for rest in (0, 1)]

    runs = runs_of(batch, by_parity, Shape(size=2), in_order=True)
    assert [run.tolist() for _, run in runs] == [[2, 4], [6], [9, 7], [1]]
    as_sorted = runs_of(batch, by_parity, Shape(size=2))
    assert [run.tolist() for _, run in as_sorted] == [[2, 4], [6], [1, 7], [9]], "negative control"
    with pytest.raises(ValueError, match="every position of the batch once"):
        runs_of(batch, lambda positions: [positions[:2]], Shape(size=2), in_order=True)


def test_the_margin_is_the_same_for_few_and_many_rows(on_device):
    row = 5 * torch.randn(1, 300)
    few = clipped_sum([row], MECHANISM, wide=False, shuffled=64)
    many = clipped_sum([row], MECHANISM, wide=True, shuffled=64)
    assert torch.equal(few, many.float())
    assert 1 - 2.1 * GROUP_ROUNDING < float(many.norm()) <= 1 - GROUP_ROUNDING


class Bytes(TorchDispatchMode):
    """Bytes that operations read and write."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [
                t for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)
            ]
            self.count += sum(t.nbytes for t in tensors)
            # torch's reductions of CUDA write a copy in the wider type first
            wider = (kwargs or {}).get("dtype")
            if wider == torch.float64 and tensors and tensors[0].dtype == torch.float32:
                self.count += 2 * 8 * tensors[0].numel()
        return result


def bytes_of(rows, **more):
    with Bytes() as counted:
        clipped_sum([rows], MECHANISM, wide=True, **more)
    return counted.count / rows.nbytes


def test_a_gradient_is_read_twice_and_not_ten_times(on_device, monkeypatch):
    rows = torch.randn(256, 2048)
    once = bytes_of(rows, shuffled=256)
    for place in (clip, clip_norms):
        monkeypatch.setattr(place, "reads_once", lambda block: False)
    assert bytes_of(rows) > 9
    assert once < 3


def test_tf32_is_off_for_these_products_alone():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        with all_digits("cuda"):
            assert keeps_digits("cuda") or torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
