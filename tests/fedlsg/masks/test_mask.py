"""Importance and the choice of units against goldens and naive loops; what Keep says it keeps."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.frame import Keep
from fedlsg.masks.rules import frozen_count, gradual_cooling, keep_units, uniform, unit_importance

seeds = st.integers(0, 10_000)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@given(m=st.integers(1, 4), c=st.integers(1, 4), kh=st.integers(1, 3), kw=st.integers(1, 3), seed=seeds)
def test_importance_of_a_kernel_sums_over_whole_kernels(m, c, kh, kw, seed):
    W = torch.randn(m, c, kh, kw, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    O, I = [0.0] * m, [0.0] * c
    for i, j, y, x in itertools.product(range(m), range(c), range(kh), range(kw)):
        O[i] += abs(float(W[i, j, y, x]))
        I[j] += abs(float(W[i, j, y, x]))
    got = unit_importance(W)
    assert got[0].tolist() == pytest.approx(O)
    assert got[1].tolist() == pytest.approx(I)


@pytest.mark.parametrize("shape", [(3,), (3, 4, 5), (1, 2, 3, 4, 5)])
def test_importance_of_other_shapes_is_refused(shape):
    with pytest.raises(ValueError, match=r"linear .* or convolution"):
        unit_importance(torch.ones(shape))


@given(
    importance=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    sparsity=st.floats(0, 0.999),
    direction=st.sampled_from(["top", "bottom"]),
)
def test_kept_units_equal_a_sort_written_out(importance, sparsity, direction):
    """All but the floor(p * units) least important (most, for "bottom"), the lower index frozen first among equals."""
    sign = 1 if direction == "top" else -1
    ranked = sorted(range(len(importance)), key=lambda i: (sign * importance[i], i))
    frozen = min(math.floor(sparsity * len(importance) + 1e-9), len(importance) - 1)
    kept = keep_units(torch.tensor(importance, dtype=torch.float32), sparsity, direction)
    assert kept.tolist() == sorted(ranked[frozen:])
    assert kept.dtype == torch.int64


@pytest.mark.parametrize(
    ("units", "sparsity", "frozen"), [(100, 0.29, 29), (10, 0.3, 3), (10, 0.7, 7), (7, 0.5, 3), (3, 0.0, 0)]
)
def test_the_count_of_frozen_units_survives_rounding(units, sparsity, frozen):
    assert frozen_count(units, sparsity) == frozen


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 1.5, float("nan")])
def test_sparsities_outside_zero_to_one_are_refused(sparsity):
    calls = [
        lambda: keep_units(torch.ones(3), sparsity),
        lambda: uniform(3, sparsity, generator=torch.Generator()),
        lambda: gradual_cooling(sparsity, 0, 2),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="sparsity"):
            call()


@st.composite
def keeps(draw: st.DrawFn) -> tuple[tuple[int, ...], Keep]:
    shape = draw(shapes)
    axis = draw(st.sampled_from([None, *range(len(shape))]))
    total = math.prod(shape) if axis is None else shape[axis]
    index = sorted(draw(st.sets(st.integers(0, total - 1))))
    return shape, Keep(axis=axis, index=torch.tensor(index, dtype=torch.int64))


@given(case=keeps())
def test_positions_equal_a_loop_over_the_block(case):
    shape, keep = case
    chosen = set(keep.index.tolist())
    expected = []
    for flat, place in enumerate(itertools.product(*map(range, shape))):
        if (flat if keep.axis is None else place[keep.axis]) in chosen:
            expected.append(flat)
    assert keep.positions(shape).tolist() == expected
    assert keep.count(shape) == len(expected)
