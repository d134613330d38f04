"""rho of a plan: the values it counts, the line before a run, and the noise that a run really sends."""

import math
from pathlib import Path
from statistics import fmean

import pytest
import torch

import strategies
from fedlsg.state import mean_frame
from simulations.plan.advice import rho_of, sum_line
from simulations.plan.prepare import prepare
from simulations.settings.settings import from_mapping
from tests.simulations.support.runs import plan_at, run_local

FAINT = {"method": "dpsgd", "rounds": 1, "learning_rate": 1.0, "momentum": 0.0, "local_learning_rate": 1e-12}
"""One update of the server by the sum over the divisor; weights do not move within a round."""


# What is counted


@pytest.mark.parametrize(
    "settings",
    [
        *({"method": name} for name in strategies.names()),
        {"method": "rs", "sparsity": 0.9, "rounds": 12},  # gradual cooling
        {"method": "rs", "sparsity": 0.9, "ranking": "gradients"},
        {"method": "lsg", "importance": "carriers", "sparsity": 0.5},
        {"method": "probe", "sparsity": 0.5},
        {"method": "lsg", "sparsity_from": 0.5, "sparsity": 0.75, "rounds": 4},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_the_mean_frame_has_the_values_of_the_mean_round(settings):
    """Oracle: the frames of all rounds. Where the mask changes, the first round has more, and the last has fewer."""
    base = prepare(from_mapping({"engine": "local", "rounds": 2, **settings}))
    state = base.server_state()
    rounds = range(1, base.schedule.rounds + 1)
    basis = state.basis_of(1)
    frames = [state.public.frame(round, updates=round - 1, basis=basis) for round in rounds]
    found = mean_frame(state.public)
    assert found.kept == pytest.approx(fmean(frame.kept for frame in frames), abs=max(2, 0.01 * found.size))
    assert len(found.blocks) == len(frames[0].blocks)
    if frames[-1].kept < frames[0].kept:
        assert frames[-1].kept < found.kept < frames[0].kept


# What is noisy


def sent(out: Path, **settings: object) -> tuple[torch.Tensor, object]:
    """The step of the weights in round 1, and its plan."""
    run = run_local(out, **FAINT, **settings)
    assert run.plan is not None
    before = torch.cat([p.detach().flatten() for p in run.plan.build_model().parameters()])
    return run.weights - before, run


@pytest.mark.parametrize(
    "settings",
    [
        {"clients": 1},
        {"clients": 4, "clients_per_round": 3},
        {"clients": 2, "trust": "aggregate"},
        {"clients": 2, "trust": "aggregate", "min_survivors": 1},
        {"clients": 2, "local_steps": 4},
        {"clients": 2, "clip": "per-block", "clip_norm": 0.3},
    ],
    ids=str,
)
def test_a_runs_noise_over_its_clip_norm_is_rho(tmp_path, settings):
    """The same seeds with clip only have the same batches: the difference is the noise. Its relative deviation is
    1 / sqrt(2 d) = 1 %."""
    noisy, run = sent(tmp_path / "noisy", **settings)
    clean, _ = sent(tmp_path / "clean", mechanism="clip-only", noise_multiplier=None, **settings)
    plan = run.plan
    frame = plan.public_state().frame(1, updates=0)
    largest = plan.method.mechanism.sensitivity(len(frame.blocks))
    steps = math.sqrt(settings.get("local_steps", 1))  # the noise of a round's steps, which are independent
    measured = float((noisy - clean).norm()) / largest / steps
    assert run.summary["rho"] == rho_of(plan, plan.public_state())
    assert measured == pytest.approx(run.summary["rho"], rel=0.05)


# What is said


# Secure sums


@pytest.mark.parametrize(
    ("settings", "honest", "cost"),
    [
        ({"clients": 2, "trust": "secure"}, "1 honest client", 1.41),
        ({"clients": 5, "trust": "aggregate"}, "4 honest clients", 1.12),
        ({"clients": 10, "trust": "secure", "colluders": 3}, "6 honest clients", 1.22),
    ],
)
def test_the_line_says_what_protection_against_the_clients_of_a_sum_costs(settings, honest, cost, tmp_path):
    """sqrt(m / (m - t)), which is also the ratio of the sums' noise with and without a reader among the clients."""
    plan, _ = plan_at(tmp_path / "run", **settings)
    found = sum_line(plan, plan.public_state())
    assert found is not None
    assert f"noise planned for {honest}\n" in found
    assert found.endswith(f"of a sum {cost} times as large")
