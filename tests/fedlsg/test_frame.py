"""The flat vector of a frame: its layout, its way back to weights, and what its digest
distinguishes.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from fedlsg.frame import Block, Frame, Keep
from fedlsg.lowrank import average_core, reconstruct
from tests.fedlsg.support.gradient_oracle import flat_gradient, make_frame

seeds = st.integers(0, 10_000)


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 4, (2, 3)), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(8, 5)
    ).double()


def gradients(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in model().parameters()]


frames = pytest.mark.parametrize(
    "frame",
    [
        make_frame(model(), rank=2, sparsity=p, flat=flat)
        for p in (0.0, 0.5)
        for flat in (False, True)
    ]
    + [make_frame(model(), rank=2, sparsity=0.0, carry=False)],
    ids=["whole", "whole-flat", "units", "flat", "dense"],
)


@frames
def test_indices_are_ascending_and_in_range(frame):
    assert (frame.indices.diff() > 0).all()
    assert 0 <= int(frame.indices[0]) <= int(frame.indices[-1]) < frame.size


@frames
def test_indices_are_those_of_each_block_after_the_other_and_shared_where_all_are_kept(frame):
    start, expected = 0, []
    for block in frame.blocks:
        expected += [start + place for place in block.keep.positions(block.shape).tolist()]
        start += block.size
    assert frame.indices.tolist() == expected
    again = Frame(coordinates=frame.coordinates, blocks=frame.blocks)
    shared = again.indices is frame.indices
    assert shared == (frame.kept == frame.size)


def test_positions_that_somebody_wrote_into_are_not_given_to_others():
    small = nn.Linear(7, 3)  # of a size that no other test has
    one, other = (make_frame(small, rank=2, sparsity=0.0, carry=False) for _ in range(2))
    one.indices.add_(1)
    assert other.indices[0] == 0


@frames
def test_unflatten_puts_each_value_at_its_place_and_zero_elsewhere(frame):
    values = torch.arange(1.0, frame.kept + 1)
    pieces = frame.unflatten(values)
    assert [tuple(t.shape) for t in pieces] == [b.shape for b in frame.blocks]
    flat = torch.cat([t.flatten() for t in pieces])
    assert torch.equal(flat[frame.indices], values)
    assert int((flat != 0).sum()) == frame.kept


@pytest.mark.thinned(2)
@frames
@pytest.mark.parametrize("averaged", [False, True])
@given(seed=seeds)
def test_gradients_equal_eq_3_of_the_masked_blocks(frame, averaged, seed):
    """Oracle: project, zero what is frozen, reconstruct, parameter by parameter."""
    dense = gradients(seed)
    flat = flat_gradient(dense, frame)
    frozen = torch.ones(frame.size, dtype=torch.bool)
    frozen[frame.indices] = False
    zeroed = flat.masked_fill(frozen, 0).split([b.size for b in frame.blocks])
    parts = {
        (b.parameter, b.part): t.reshape(b.shape) for b, t in zip(frame.blocks, zeroed, strict=True)
    }
    got = frame.gradients(flat[frame.indices], averaged=averaged)
    assert list(got) == [c.name for c in frame.coordinates]
    for c in frame.coordinates:
        if c.L is None or c.R is None:
            expected = parts[c.name, "dense"]
        else:
            dL, dR = parts[c.name, "L"], parts[c.name, "R"].flatten(1)
            if averaged:
                dL, dR = average_core(dL, dR, c.L, c.R)
            expected = reconstruct(dL, dR, c.L, c.R).reshape(c.shape)
        assert_close(got[c.name], expected)


@pytest.mark.thinned(3)
@frames
@given(seed=seeds)
def test_gradients_are_linear(frame, seed):
    a, b = torch.randn(
        2, frame.kept, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    joint, first, second = frame.gradients(a - 2 * b), frame.gradients(a), frame.gradients(b)
    for name, value in joint.items():
        assert_close(value, first[name] - 2 * second[name])


@pytest.mark.parametrize("change", [-1, 1])
def test_another_number_of_values_is_refused(change):
    frame = make_frame(model(), rank=2, sparsity=0.5)
    with pytest.raises(ValueError, match=f"expected {frame.kept} kept values"):
        frame.gradients(torch.zeros(frame.kept + change))


def nudge_carrier(frame: Frame) -> Frame:
    first = frame.coordinates[0]
    L = first.L.clone()
    L[0, 0] = torch.nextafter(L[0, 0], torch.tensor(9.0).to(L))
    return replace(frame, coordinates=(replace(first, L=L), *frame.coordinates[1:]))


def change_block(frame: Frame, change: Callable[[Block], Block], at: int = 0) -> Frame:
    blocks = list(frame.blocks)
    blocks[at] = change(blocks[at])
    return replace(frame, blocks=tuple(blocks))


def reshaped(block: Block) -> Block:
    """The same kept positions in a block of another shape."""
    return replace(
        block, shape=block.shape[::-1], keep=Keep(index=block.keep.positions(block.shape))
    )


CHANGES = {
    "one bit of a carrier": nudge_carrier,
    "one kept row": lambda f: change_block(
        f, lambda b: replace(b, keep=Keep(axis=0, index=torch.tensor([0, 1])))
    ),
    "a parameter's name": lambda f: change_block(f, lambda b: replace(b, parameter="other")),
    "a part": lambda f: change_block(f, lambda b: replace(b, part="dense")),
    "a shape": lambda f: change_block(f, reshaped),
    "the order": lambda f: replace(f, blocks=f.blocks[::-1]),
}


@pytest.mark.parametrize("case", CHANGES)
def test_the_digest_sees(case):
    frame = make_frame(model(), rank=2, sparsity=0.5)
    rows = frame.blocks[0].keep.index
    assert rows.tolist() != [0, 1]
    assert CHANGES[case](frame).digest != frame.digest
