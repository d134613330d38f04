"""Carriers are orthonormal, Eq. 3 is the projection it claims to be, and where the paper is wrong
it stays pinned.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from fedlsg.lowrank import (
    add_core,
    average_core,
    decompose,
    lift_core,
    orthonormal_columns,
    project,
    project_core,
    random_carriers,
    reconstruct,
)

sizes, ranks, seeds = st.integers(1, 9), st.integers(1, 9), st.integers(0, 10_000)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def carried(m: int, n: int, r: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A gradient and random carriers of rank min(r, m, n)."""
    W = normal(m, n, seed=seed)
    return normal(m, n, seed=seed + 1), *random_carriers(
        (m, n), min(r, m, n), generator=generator(seed), like=W
    )


def assert_orthonormal(L: Tensor, R: Tensor) -> None:
    eye = torch.eye(L.shape[1], dtype=L.dtype)
    assert_close(L.mT @ L, eye, atol=1e-12, rtol=0)
    assert_close(R @ R.mT, eye, atol=1e-12, rtol=0)


@given(m=sizes, n=sizes, r=ranks, true_rank=st.integers(0, 9), steps=st.integers(1, 3), seed=seeds)
def test_carriers_are_orthonormal_for_any_weight(m, n, r, true_rank, steps, seed):
    """Also where the weight's rank is below r, down to W = 0."""
    W = normal(m, true_rank, seed=seed) @ normal(true_rank, n, seed=seed + 1)
    r = min(r, m, n)
    L, R = decompose(W, r, generator=generator(seed), power_steps=steps)
    assert (L.shape, R.shape) == ((m, r), (r, n))
    assert_orthonormal(L, R)


def test_one_power_step_golden_by_hand():
    """L spans W R0^T and R spans L^T W: for r = 1 their directions, L up to the sign of R0's share,
    L^T W R^T > 0.
    """
    W = torch.tensor([[3.0, 0], [0, 0], [4.0, 0]], dtype=torch.float64)
    R0 = torch.randn(1, 2, generator=generator(), dtype=torch.float32)
    sign = math.copysign(1, float(R0[0, 0]))
    L, R = decompose(W, 1, generator=generator())
    assert_close(L, sign * torch.tensor([[0.6], [0.0], [0.8]], dtype=torch.float64))
    assert_close(R, sign * torch.tensor([[1.0, 0.0]], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_seeds_give_equal_bits(dtype):
    W = normal(7, 5, seed=0).to(dtype)
    first, again, other = (decompose(W, 3, generator=generator(s)) for s in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert {t.dtype for t in first} == {dtype}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_carriers_of_half_precision_are_those_of_float32_rounded(dtype):
    W = normal(7, 5, seed=0).to(dtype)
    halves = decompose(W, 3, generator=generator())
    wide = decompose(W.float(), 3, generator=generator())
    for half, exact in zip(halves, wide, strict=True):
        assert half.dtype == dtype
        assert_close(half.float(), exact, rtol=0, atol=32 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("rank", [0, -1, 4])
def test_wrong_ranks_are_refused(rank):
    with pytest.raises(ValueError, match=f"{rank=} <= 3 for a weight of shape"):
        decompose(torch.ones(3, 5), rank, generator=generator())
    with pytest.raises(ValueError, match=f"{rank=}"):
        random_carriers((3, 5), rank, generator=generator(), like=torch.ones(1))


@given(m=sizes, n=sizes, r=ranks, seed=seeds)
def test_project_equals_autograd_of_the_reparametrised_weight(m, n, r, seed):
    """Ito et al. 2023, Eq. 8: with W = W0 + L R', dR and dL are the gradients of its factors."""
    dW, L, R = carried(m, n, r, seed)
    left, right = L.clone().requires_grad_(), R.clone().requires_grad_()
    ((left @ right) * dW).sum().backward()
    dL, dR = project(dW, L, R)
    assert_close(dL, left.grad)
    assert_close(dR, right.grad)


@given(m=sizes, n=sizes, r=ranks, seed=seeds)
def test_the_tangent_space_is_carried_exactly(m, n, r, seed):
    """A L^T-side or R-side factor comes back unchanged: L A + B R for any A, B."""
    _, L, R = carried(m, n, r, seed)
    dW = L @ normal(*R.shape, seed=seed) + normal(*L.shape, seed=seed + 1) @ R
    assert_close(reconstruct(*project(dW, L, R), L, R), dW)


def test_eq_3_golden_by_hand():
    """L = e_1, R = e_1^T: row 1 and column 1 survive, the corner once."""
    dW = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    L, R = torch.tensor([[1.0], [0]]), torch.tensor([[1.0, 0, 0]])
    dL, dR = project(dW, L, R)
    assert dL.tolist() == [[1], [4]]
    assert dR.tolist() == [[1, 2, 3]]
    assert reconstruct(dL, dR, L, R).tolist() == [[1, 2, 3], [4, 0, 0]]


def test_masked_eq_3_can_lengthen_a_gradient_to_two_over_root_three():
    """With frozen units Eq. 3 is no projection; the bound of the docstring is reached and not
    passed.

    n = 1, R = (1) kept and dR frozen: dW' = (1 - L L^T) M dW with M the mask of rows, over the
    angle of L.
    """
    worst = 0.0
    for angle in torch.linspace(0, math.pi / 2, 181).tolist():
        L = torch.tensor([[math.cos(angle)], [math.sin(angle)]], dtype=torch.float64)
        R = torch.ones(1, 1, dtype=torch.float64)
        columns = []
        for unit in torch.eye(2, dtype=torch.float64):
            dL, dR = project(unit[:, None], L, R)
            dL[1] = 0
            columns.append(reconstruct(dL, dR, L, R))
        worst = max(worst, float(torch.linalg.matrix_norm(torch.cat(columns, 1), 2)))
    assert worst == pytest.approx(2 / math.sqrt(3), rel=1e-3)


@given(m=sizes, n=sizes, r=ranks, s=ranks, seed=seeds)
def test_the_core_is_what_the_tangent_form_sends_twice_and_its_lift_is_a_projection(
    m, n, r, s, seed
):
    dW = normal(m, n, seed=seed)
    L, R = (orthonormal_columns(normal(k, min(r, k), seed=k)) for k in (m, n))
    S = project_core(dW, L, R.mT)
    assert_close(S, L.mT @ project(dW, L, R.mT)[0])
    once = lift_core(S, L, R.mT)
    assert_close(lift_core(project_core(once, L, R.mT), L, R.mT), once)
    assert once.norm() <= dW.norm() * (1 + 1e-12)
    assert S.norm() == pytest.approx(once.norm())


@given(m=sizes, n=sizes, r=ranks, s=ranks, seed=seeds)
def test_the_lift_is_the_adjoint_of_the_core_for_carriers_of_any_scale(m, n, r, s, seed):
    dW, L, R, S = (
        normal(*shape, seed=seed + i) for i, shape in enumerate([(m, n), (m, r), (s, n), (r, s)])
    )
    assert_close((project_core(dW, L, R) * S).sum(), (dW * lift_core(S, L, R)).sum())


@given(m=sizes, n=sizes, seed=seeds)
def test_the_core_of_square_orthonormal_carriers_loses_nothing(m, n, seed):
    dW, L, R = (normal(*shape, seed=seed + i) for i, shape in enumerate([(m, n), (m, m), (n, n)]))
    L, R = orthonormal_columns(L), orthonormal_columns(R)
    assert_close(lift_core(project_core(dW, L, R), L, R), dW)


@pytest.mark.parametrize(("r", "s"), [(2, 3), (3, 2)])
def test_a_core_is_added_as_it_is_lifted(r, s):
    W = normal(7, 5, seed=0)
    S = normal(r, s, seed=1)
    L = normal(7, r, seed=2)
    R = normal(s, 5, seed=3)
    wanted = W + 0.5 * lift_core(S, L, R)
    add_core(W, S, L, R, 0.5)
    assert_close(W, wanted)


def test_averaging_removes_half_of_the_cores_noise():
    L, R = random_carriers((6, 5), 4, generator=generator(), like=normal(1, seed=0))
    before, after = 0.0, 0.0
    for seed in range(300):
        dL, dR = normal(6, 4, seed=2 * seed), normal(4, 5, seed=2 * seed + 1)
        before += float((L.mT @ dL).square().sum())
        after += float((L.mT @ average_core(dL, dR, L, R)[0]).square().sum())
    assert after / before == pytest.approx(0.5, abs=0.05)
