"""Clip and noise: no example counts for more than C, and the noise is what the ledger is told."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlsg.noise import add_gaussian
from fedlsg.privacy.clip import NARROW_SUM, clipped_sum
from fedlsg.privacy.clip_norms import clip_factors
from fedlsg.privacy.mechanism import LARGEST_CLIP_NORM, Mechanism, add_noise
from fedlsg.randomness import reproducible_stream, secret_stream

SPECIAL = [0.0, math.nan, math.inf, -math.inf, 1e-45, 1e-38, 3e38, -3e38]

widths = st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any)
clip_norms = st.floats(1e-6, 1e6)
clips = st.sampled_from(["joint", "per-block"])
dtypes = st.sampled_from([torch.float32, torch.float64])
seeds = st.integers(0, 2**32)


def clip_only(clip_norm: float, clip: str = "joint") -> Mechanism:
    return Mechanism(kind="clip-only", clip_norm=clip_norm, clip=clip)


def hostile(batch: int, widths: list[int], dtype: torch.dtype, seed: int) -> list[Tensor]:
    """Blocks whose rows span the whole range of the dtype, with zeros, NaN and infinities strewn
    in.
    """
    rng = np.random.default_rng(seed)
    limit = 37 if dtype == torch.float32 else 300
    x = rng.standard_normal((batch, sum(widths))) * 10.0 ** rng.uniform(-limit, limit, (batch, 1))
    ordinary = rng.random(batch) < 0.4
    x[ordinary] = rng.standard_normal((int(ordinary.sum()), sum(widths)))
    strewn = (rng.random(x.shape) < 0.1) & (rng.random((batch, 1)) < 0.4)
    x[strewn] = rng.choice(SPECIAL, int(strewn.sum()))
    return list(torch.tensor(x, dtype=dtype).split(widths, dim=1))


def ordinary(batch: int, widths: list[int], seed: int, scale: float = 1.0) -> list[Tensor]:
    """Gaussian float64 blocks."""
    rng = np.random.default_rng(seed)
    return list(
        torch.tensor(rng.standard_normal((batch, sum(widths))) * scale).split(widths, dim=1)
    )


def naive_sum(blocks: list[Tensor], mechanism: Mechanism) -> Tensor:
    """Example after example, coordinate after coordinate, in Python's floats."""
    total = [0.0] * sum(block.shape[1] for block in blocks)
    for i in range(len(blocks[0])):
        rows = [[float(x) for x in block[i]] for block in blocks]
        joint = math.sqrt(math.fsum(x * x for row in rows for x in row))
        position = 0
        for row in rows:
            norm = joint if mechanism.clip == "joint" else math.sqrt(math.fsum(x * x for x in row))
            for x in row:
                total[position] += x * min(1.0, mechanism.clip_norm / norm) if norm else 0.0
                position += 1
    return torch.tensor(total, dtype=torch.float64)


def exact_square(x: Tensor) -> Fraction:
    """The squared norm without rounding."""
    return sum((Fraction(float(v)) ** 2 for v in x), Fraction(0))


@pytest.mark.slow
@given(batch=st.integers(1, 6), widths=widths, C=clip_norms, clip=clips, dtype=dtypes, seed=seeds)
@settings(max_examples=300)
def test_no_example_contributes_more_than_the_sensitivity(batch, widths, C, clip, dtype, seed):
    """Exact arithmetic, no tolerance: each row alone stays within C (within C a block where that is
    promised).
    """
    blocks = hostile(batch, widths, dtype, seed)
    for i in range(batch):
        alone = clipped_sum([block[i : i + 1] for block in blocks], clip_only(C, clip))
        assert alone.isfinite().all()
        if clip == "joint":
            assert exact_square(alone) <= Fraction(C) ** 2
        for piece in alone.split(widths):
            assert exact_square(piece) <= Fraction(C) ** 2


@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.7])
@pytest.mark.parametrize("width", [10**5, 3 * 10**5, 10**6])
def test_the_rounding_of_a_long_norm_is_covered(width, value):
    """A float64 norm of many equal numbers is off by far more than its last place: C was once
    exceeded by 5e-12.
    """
    row = torch.full((1, width), value, dtype=torch.float64)
    clipped = clipped_sum([row], clip_only(1.0))
    assert clipped.unique().numel() == 1
    assert width * Fraction(float(clipped[0])) ** 2 <= 1


@given(row=st.floats(1e20, 3e38), C=st.floats(1e-20, 1e-3))
def test_subnormal_factors_do_not_overshoot(row, C):
    """C / norm below 1e-38 has few digits in float32; it once let 1.77 C through."""
    assert float(clipped_sum([torch.tensor([[row]])], clip_only(C))) <= C


@given(width=st.integers(1, 30), C=st.floats(1e-2, 1e2), seed=seeds)
def test_bfloat16_stays_within_its_clip(width, C, seed):
    (block,) = ordinary(1, [width], seed, scale=10.0)
    total = clipped_sum([block.bfloat16()], clip_only(C))
    # sums in fewer digits would be rounded by more than the margin
    assert total.dtype == torch.float32
    assert exact_square(total.double()) <= Fraction(C) ** 2


@given(batch=st.integers(1, 8), widths=widths, C=st.floats(0.01, 10), clip=clips, seed=seeds)
def test_one_example_moves_the_sum_by_at_most_the_sensitivity(batch, widths, C, clip, seed):
    mechanism = clip_only(C, clip)
    blocks = ordinary(batch, widths, seed, scale=5.0)
    rest = [block[1:] for block in blocks]
    moved = float((clipped_sum(blocks, mechanism) - clipped_sum(rest, mechanism)).norm())
    assert moved <= mechanism.sensitivity(len(blocks)) * (1 + 1e-12)


@pytest.mark.parametrize("blocks", [1, 4, 9])
def test_the_sensitivity_is_reached(blocks):
    """Not only a bound: one large example moves the sum by all of it (per block, sqrt(G) times
    C).
    """
    for clip in ("joint", "per-block"):
        mechanism = clip_only(0.5, clip)
        one = clipped_sum([torch.full((1, 3), 1e3, dtype=torch.float64)] * blocks, mechanism)
        assert float(one.norm()) == pytest.approx(mechanism.sensitivity(blocks), rel=1e-9)


@given(batch=st.integers(0, 7), widths=widths, C=st.floats(0.01, 10), clip=clips, seed=seeds)
def test_clipped_sum_equals_the_naive_loop(batch, widths, C, clip, seed):
    blocks = ordinary(batch, widths, seed, scale=2.0)
    wanted = naive_sum(blocks, clip_only(C, clip))
    torch.testing.assert_close(
        clipped_sum(blocks, clip_only(C, clip)), wanted, rtol=1e-10, atol=1e-11
    )
    in_float32 = clipped_sum([block.float() for block in blocks], clip_only(C, clip))
    torch.testing.assert_close(in_float32.double(), wanted, rtol=1e-4, atol=1e-4)


def test_clipped_sum_golden():
    """C = 1. Rows (3 | 4), norm 5, and (.3 | .4), norm .5: joint (.6, .8) + (.3, .4), per block (1,
    1) + (.3, .4).
    """
    blocks = [
        torch.tensor([[3.0], [0.3]], dtype=torch.float64),
        torch.tensor([[4.0], [0.4]], dtype=torch.float64),
    ]
    torch.testing.assert_close(
        clipped_sum(blocks, clip_only(1.0)), torch.tensor([0.9, 1.2]).double()
    )
    torch.testing.assert_close(
        clipped_sum(blocks, clip_only(1.0, "per-block")), torch.tensor([1.3, 1.4]).double()
    )
    for kind in ("none", "noise-only"):
        torch.testing.assert_close(
            clipped_sum(blocks, Mechanism(kind=kind)), torch.tensor([3.3, 4.4]).double()
        )


@given(
    widths=widths,
    clip=clips,
    dtype=dtypes,
    seed=seeds,
    bad=st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_non_finite_examples_contribute_exactly_zero(widths, clip, dtype, seed, bad):
    blocks = [block.to(dtype) for block in ordinary(4, widths, seed)]
    place = next(i for i, width in enumerate(widths) if width)
    spoilt = [block.clone() for block in blocks]
    spoilt[place][2, 0] = bad
    without = [block[[0, 1, 3]] for block in blocks]
    zeroed = [block.index_fill(0, torch.tensor([2]), 0.0) for block in blocks]
    assert torch.equal(
        clipped_sum(spoilt, clip_only(1.0, clip)), clipped_sum(zeroed, clip_only(1.0, clip))
    )
    torch.testing.assert_close(
        clipped_sum(spoilt, clip_only(1.0, clip)), clipped_sum(without, clip_only(1.0, clip))
    )


@pytest.mark.parametrize("kind", ["dp", "clip-only", "noise-only", "none"])
@pytest.mark.parametrize("clip", ["joint", "per-block"])
def test_an_empty_batch_gives_zeros(kind, clip):
    blocks = [torch.zeros(0, 3), torch.zeros(0, 0), torch.zeros(0, 2)]
    assert clipped_sum(blocks, Mechanism(kind=kind, clip=clip)).tolist() == [0.0] * 5


@given(norm=st.floats(0, 1e30), C=st.floats(1e-6, 1e6), dtype=dtypes)
def test_factors_round_down_and_never_exceed_one(norm, C, dtype):
    factor = clip_factors(torch.tensor([norm], dtype=torch.float64), C, dtype, coordinates=1)
    exact = min(Fraction(1), Fraction(C) / Fraction(norm)) if norm else Fraction(1)
    assert factor.dtype == dtype
    assert Fraction(float(factor)) <= exact
    margin = 8 * torch.finfo(dtype).eps
    assert (
        Fraction(float(factor)) >= exact * Fraction(1 - margin)
        or exact < 2 * torch.finfo(dtype).tiny
    )


@given(blocks=st.integers(1, 60), sigma=st.floats(0.1, 50), C=st.floats(0.01, 100))
def test_per_block_noise_multiplier_is_the_joint_one(blocks, sigma, C):
    """(sum_g C_g^2 / s_g^2)^(-1/2), summed block by block; the claimed sigma holds for one block
    only.
    """
    mechanism = Mechanism(clip="per-block", noise_multiplier=sigma, clip_norm=C)
    wanted = sum(C**2 / mechanism.noise_std**2 for _ in range(blocks)) ** -0.5
    assert mechanism.effective_noise_multiplier(blocks) == pytest.approx(wanted, rel=1e-9)
    assert mechanism.effective_noise_multiplier(blocks) == pytest.approx(sigma / math.sqrt(blocks))
    joint = Mechanism(noise_multiplier=sigma, clip_norm=C)
    assert joint.effective_noise_multiplier(blocks) == pytest.approx(sigma)


@pytest.mark.parametrize(
    ("kind", "clips", "adds_noise", "private"),
    [
        ("dp", True, True, True),
        ("clip-only", True, False, False),
        ("noise-only", False, True, False),
        ("none", False, False, False),
    ],
)
def test_kinds(kind, clips, adds_noise, private):
    mechanism = Mechanism(kind=kind, noise_multiplier=2, clip_norm=3)
    assert (mechanism.clips, mechanism.adds_noise, mechanism.private) == (
        clips,
        adds_noise,
        private,
    )
    assert mechanism.noise_std == (6 if adds_noise else 0)
    assert mechanism.sensitivity(4) == (3 if clips else math.inf)
    assert mechanism.effective_noise_multiplier(4) == (2 if private else 0)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("kind", ["dp", "noise-only"])
def test_wrong_noise_multipliers_are_refused(kind, value):
    with pytest.raises(
        ValueError, match=r"noise_multiplier=.*choose mechanism 'none' or 'clip-only'"
    ):
        Mechanism(kind=kind, noise_multiplier=value)
    Mechanism(kind="clip-only", noise_multiplier=value)
    Mechanism(kind="none", noise_multiplier=value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 2.5e38])
@pytest.mark.parametrize("kind", ["dp", "clip-only", "noise-only"])
def test_wrong_clip_norms_are_refused(kind, value):
    with pytest.raises(ValueError, match="clip_norm="):
        Mechanism(kind=kind, clip_norm=value)
    Mechanism(kind="none", clip_norm=value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"kind": "gaussian"}, "mechanism in .*'gaussian'"),
        ({"clip": "flat"}, "clip in .*'flat'"),
        *[({"noise_share": share}, "noise_share") for share in (0, -1, 1.5, math.nan)],
    ],
)
def test_other_wrong_settings_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        Mechanism(**setting)


@given(width=st.integers(0, 50), dtype=dtypes, seed=seeds)
def test_noise_is_that_of_sigma_c(width, dtype, seed):
    total = torch.linspace(-1, 1, width, dtype=dtype)
    mechanism = Mechanism(noise_multiplier=1.5, clip_norm=0.5)
    wanted = add_gaussian(total, 0.75, reproducible_stream(seed))
    assert wanted.dtype == dtype
    assert torch.equal(add_noise(total, mechanism, reproducible_stream(seed)), wanted)


@pytest.mark.parametrize("kind", ["clip-only", "none"])
def test_without_noise_no_stream_is_read(kind):
    stream, untouched = reproducible_stream(0), reproducible_stream(0)
    total = torch.ones(5)
    assert torch.equal(add_noise(total, Mechanism(kind=kind), stream), total)
    assert np.array_equal(stream.words(3), untouched.words(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["dp", "noise-only"])
def test_noise_has_its_standard_deviation(kind, dtype):
    """Within 2 % on secret draws, 20 standard errors."""
    noise = add_noise(
        torch.zeros(500_000, dtype=dtype),
        Mechanism(kind=kind, noise_multiplier=3, clip_norm=0.2),
        secret_stream(),
    )
    assert float(noise.std()) == pytest.approx(0.6, rel=0.02)
    assert abs(float(noise.mean())) < 7 * 0.6 / math.sqrt(len(noise))


def test_a_reduced_matmul_precision_does_not_loosen_the_clip(monkeypatch):
    """Under bfloat16 or TF32 products the rows would be rounded to 8 or 11 bits, beyond the margin.

    Not every processor rounds then, so that here a product of matrices does on all of them: up.
    """
    monkeypatch.setattr(torch, "mm", lambda a, b, out: out.copy_(a @ b * 1.004))
    rows = torch.full((1, 64), 1.00390625 * 3)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        total = clipped_sum([rows, rows], clip_only(0.7))
    finally:
        torch.set_float32_matmul_precision(before)
    assert total.double().norm() <= 0.7


def test_the_largest_clip_norm_leaves_no_sum_infinite():
    """At C = 2.5e38 a second example made the float32 sum infinite, and the release with it,
    whatever the noise.
    """
    aligned = torch.zeros(NARROW_SUM, 3)
    aligned[:, 0] = torch.finfo(torch.float32).max
    assert clipped_sum([aligned], clip_only(LARGEST_CLIP_NORM)).isfinite().all()
