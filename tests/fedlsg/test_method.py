"""The front door of the server, and the public schedule: Eq. 3 by hand, constant divisors, equal
frames.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.method import LocalTraining, Schedule, aggregate, norm_bound, server_step
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.training.server_round import ServerOptimizer, make_optimizer
from tests.fedlsg.support.step_oracle import (
    EXACT,
    EXAMPLES,
    FRAMES,
    assert_untouched,
    eq3,
    problem,
    snapshot,
)


@pytest.mark.parametrize("name", ["lsg", "rs"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_server_steps_equal_eq_3_by_hand(name, momentum):
    """Three updates: W <- W - lr v, v <- mu v + Eq3(total / divisor), with a falling learning
    rate.
    """
    p = problem(*FRAMES[name])
    server = ServerOptimizer(learning_rate=0.5, momentum=momentum, schedule="linear")
    optimizer, scheduler = make_optimizer(dict(p.model.named_parameters()), server, updates=3)
    wanted = {name: w.detach().clone() for name, w in p.model.named_parameters()}
    velocity = {name: torch.zeros_like(w) for name, w in wanted.items()}
    for update in range(3):
        total = torch.randn(
            p.frame.kept, dtype=torch.float64, generator=torch.Generator().manual_seed(update)
        )
        server_step(
            p.model, optimizer, scheduler, total, frame=p.frame, divisor=40.0, server=server
        )
        for parameter, gradient in eq3(total / 40.0, p.frame).items():
            velocity[parameter] = momentum * velocity[parameter] + gradient
            wanted[parameter] -= 0.5 * (1 - update / 3) * velocity[parameter]
    for parameter, value in p.model.named_parameters():
        torch.testing.assert_close(value.detach(), wanted[parameter], **EXACT)
        assert parameter in wanted
        assert value.grad is None


@pytest.mark.parametrize("divisor", [0.0, -1.0, math.nan, math.inf])
def test_wrong_divisors_are_refused(divisor):
    p = problem()
    before = snapshot(p.model)
    optimizer, scheduler = make_optimizer(
        dict(p.model.named_parameters()), ServerOptimizer(), updates=1
    )
    with pytest.raises(ValueError, match="divisor"):
        server_step(
            p.model,
            optimizer,
            scheduler,
            p.step(),
            frame=p.frame,
            divisor=divisor,
            server=ServerOptimizer(),
        )
    assert_untouched(p.model, before)


@given(
    rows=st.lists(
        st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), min_size=1, max_size=6
    )
)
def test_aggregate_sums_in_float64_in_the_order_given(rows):
    updates = [torch.tensor(row, dtype=torch.float32) for row in rows]
    total = aggregate(updates)
    assert total.dtype == torch.float64
    for i in range(3):
        wanted = 0.0
        for row in rows:
            wanted += row[i]
        assert total[i].item() == wanted


@given(
    sigma=st.floats(0.1, 20),
    C=st.floats(0.01, 10),
    steps=st.integers(1, 3),
    momentum=st.floats(0, 0.95),
    clip=st.sampled_from(["joint", "per-block"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25)
def test_an_honest_payload_stays_within_the_norm_bound(sigma, C, steps, momentum, clip, seed):
    p = problem()
    mechanism = Mechanism(noise_multiplier=sigma, clip_norm=C, clip=clip)
    local = LocalTraining(
        steps=steps, momentum=momentum, learning_rate=0.01, expected_batch=EXAMPLES
    )
    bound = norm_bound(mechanism, p.frame, num_examples=EXAMPLES, local=local)
    assert float(p.step(mechanism, local, seed).norm()) < bound


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ({"steps": 0}, "steps=0 >= 1"),
        ({"microbatch_size": 0}, "microbatch_size=0 >= 1"),
        *[({"momentum": v}, "momentum=") for v in (-0.1, 1, math.nan)],
        *[({"learning_rate": v}, "learning_rate=") for v in (0, -1, math.nan)],
        *[({"expected_batch": v}, "expected_batch=") for v in (0, -1, math.nan)],
        *[({"sample_rate": v}, "sample_rate=") for v in (0, 1.1, math.nan)],
    ],
)
def test_wrong_local_settings_are_refused(setting, part):
    with pytest.raises(ValueError, match=part):
        LocalTraining(**setting)


@pytest.mark.parametrize(
    "setting", [{"rounds": 0}, {"rounds": 1, "local_steps": 0}, {"rounds": 1, "sample_rate": 0.0}]
)
def test_wrong_schedules_are_refused(setting):
    with pytest.raises(ValueError, match="expected"):
        Schedule(**setting)
