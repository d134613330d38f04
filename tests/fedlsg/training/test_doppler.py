"""DOPPLER by hand: the filter, the correction of its first steps, and which filters are refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedlsg.training.doppler import Doppler, StepResponse, read_coefficients
from fedlsg.training.server_optimizer import ServerOptimizer, make_optimizer

FILTERS = {
    "none": ((), (1.0,)),
    "moving average": ((-0.9,), (0.1,)),
    "first order": ((-0.9,), (0.05, 0.05)),
    "second order": ((-0.7, -0.2), (0.05, 0.05)),
    "no memory of outputs": ((), (0.5, 0.3, 0.2)),
}


def by_hand(gradients: list[float], a: tuple[float, ...], b: tuple[float, ...], lr: float) -> float:
    """Zhang et al. 2024, Algorithm 1, with whole histories: m_t, c_t, then W - lr m_t / c_t."""
    w, m, c = 0.0, list[float](), list[float]()
    for t in range(len(gradients)):
        past = [(i, x) for i, x in enumerate(a, start=1) if t >= i]
        now = [(i, x) for i, x in enumerate(b) if t >= i]
        m.append(sum(x * gradients[t - i] for i, x in now) - sum(x * m[t - i] for i, x in past))
        c.append(sum(x for _, x in now) - sum(x * c[t - i] for i, x in past))
        w -= lr * m[t] / c[t]
    return w


def trained(gradients: list[float], a: tuple[float, ...], b: tuple[float, ...], lr: float = 0.5) -> float:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = Doppler([weight], lr=lr, a=a, b=b)
    for g in gradients:
        weight.grad = torch.tensor([g], dtype=torch.float64)
        optimizer.step()
    return weight.item()


def test_two_steps_by_hand():
    """a = -0.9, b = 0.05 0.05, gradients 2, 4: m = 0.1, 0.39; c = 0.05, 0.145."""
    a, b = FILTERS["first order"]
    assert trained([2.0], a, b, lr=1.0) == pytest.approx(-2.0)
    assert trained([2.0, 4.0], a, b, lr=1.0) == pytest.approx(-2.0 - 0.39 / 0.145)


@pytest.mark.parametrize("name", FILTERS)
@given(gradients=st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_it_is_the_papers_formula(name, gradients):
    assert trained(gradients, *FILTERS[name]) == pytest.approx(by_hand(gradients, *FILTERS[name], 0.5), abs=1e-9)


def test_another_filter_is_seen():
    """Negative control of the oracle."""
    assert trained([1.0, 2.0], *FILTERS["first order"]) != pytest.approx(by_hand([1, 2], (-0.8,), (0.05, 0.05), 0.5))


@pytest.mark.parametrize("name", FILTERS)
def test_a_constant_gradient_passes_unchanged_from_the_first_step(name):
    assert trained([3.0] * 9, *FILTERS[name], lr=0.1) == pytest.approx(-0.1 * 27)


def test_what_alternates_is_removed_by_the_default_filter():
    """A gradient of +1, -1, +1, ... moves the weight less and less, and a tenth of what SGD moves at most."""
    default = ServerOptimizer(optimizer="doppler").filter
    moves = [trained([(-1.0) ** t for t in range(n)], *default, lr=1.0) for n in (60, 61, 62)]
    assert abs(moves[1] - moves[0]) < 0.01
    assert abs(moves[2] - moves[1]) < 0.01


def test_weight_decay_does_not_enter_the_filter():
    """It shrinks W by lr * decay a step, and does not enter the filter's memory."""
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    server = ServerOptimizer(optimizer="doppler", learning_rate=0.5, weight_decay=0.2)
    optimizer, _ = make_optimizer({"w": weight}, server, updates=2)
    for _ in range(2):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    assert weight.item() == pytest.approx(0.9**2)
    assert optimizer.state[weight]["m1"].item() == 0


def test_coefficients_are_read():
    assert read_coefficients("-9/11 0.5") == (-9 / 11, 0.5)
    assert read_coefficients("") == ()
    for text in ("0.05,0.05", "one", "1/0"):
        with pytest.raises(ValueError, match="expected numbers with spaces between them"):
            read_coefficients(text)


@pytest.mark.parametrize(
    ("a", "b"),
    [("-1", "1"), ("0 1.2", "1"), ("-0.9", ""), ("-0.9", "-0.1"), ("", "1 -1"), ("", "0 1"), ("-0.9", "1 -1")],
)
def test_filters_that_are_unstable_or_turn_a_gradient_around_are_refused(a, b):
    with pytest.raises(ValueError, match="expected a stable filter"):
        ServerOptimizer(optimizer="doppler", filter_a=a, filter_b=b)


def test_the_response_is_the_filters_answer_to_ones():
    response = StepResponse(*FILTERS["moving average"])
    assert [response(t) for t in (3, 1)] == pytest.approx([1 - 0.9**3, 0.1])
