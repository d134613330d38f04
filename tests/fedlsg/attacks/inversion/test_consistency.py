"""The core that is sent twice: when it holds, what averaging removes, and where masks break it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedlsg.attacks.inversion.consistency import cores, denoised
from fedlsg.attacks.observation import Observation
from fedlsg.lowrank import average_core
from fedlsg.method import Method
from fedlsg.training.client import LocalTraining
from tests.fedlsg.support.observed import digits, method, mlp, observe


def test_holds_on_whole_carriers_of_several_steps_and_changes_nothing_without_noise():
    x, y = digits(3)
    seen = observe("rgp", mlp(), x, y, local=LocalTraining(steps=3, momentum=0.5))
    (core,) = cores(seen)
    assert core.holds
    assert core.difference < 1e-25
    torch.testing.assert_close(denoised(seen).values, seen.values)


def test_by_hand_the_mean_of_both_copies():
    # With L = R^T = first unit vectors the cores are the top left r x r corners: averaging is that of the corners.
    x, y = digits(1)
    seen = observe("rgp", mlp(), x, y)
    (c,) = [c for c in seen.frame.coordinates if c.L is not None]
    L, R = torch.eye(64, 8, dtype=torch.float64), torch.eye(8, 64, dtype=torch.float64)
    coordinates = tuple(replace(o, L=L, R=R) if o is c else o for o in seen.frame.coordinates)
    seen = replace(seen, frame=replace(seen.frame, coordinates=coordinates))
    before, after = seen.blocks, denoised(seen).blocks
    left, right = (("hidden.weight", part) for part in "LR")
    mean = (before[left][:8] + before[right][:, :8]) / 2
    torch.testing.assert_close(after[left][:8], mean)
    torch.testing.assert_close(after[right][:, :8], mean)
    torch.testing.assert_close(after[left][8:], before[left][8:])
    torch.testing.assert_close(after[right][:, 8:], before[right][:, 8:])


def test_noise_difference_and_what_is_removed_are_as_predicted():
    x, y = digits(2)
    how = method("rgp", mechanism="dp", noise_multiplier=2.0)
    clean = observe("rgp", mlp(), x, y).values
    seen = [observe(how, mlp(), x, y, seed=0)]
    seen += [_renoised(seen[0], clean, seed) for seed in range(60)]
    states = [cores(s)[0] for s in seen[1:]]
    differences = torch.tensor([c.difference for c in states])
    assert states[0].expected == pytest.approx(2 * (8 * 0.2) ** 2)
    assert abs(differences.mean() - states[0].expected) < 4 * differences.std() / 60**0.5
    drops = torch.tensor(
        [float((s.values - clean).square().sum() - (denoised(s).values - clean).square().sum()) for s in seen[1:]]
    )
    assert abs(drops.mean() - states[0].removed) < 4 * drops.std() / 60**0.5


def _renoised(seen: Observation, clean: Tensor, seed: int) -> Observation:
    noise = torch.randn(len(clean), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return replace(seen, values=clean + seen.noise_std * noise)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (method("lsg", sparsity=0.5), "rows of dL and columns of dR"),
        (method("rgp", clip="per-block"), "different factors"),
    ],
)
def test_skips_where_it_breaks(how: Method, why: str):
    x, y = digits(2)
    seen = observe(how, mlp(), x, y)
    (core,) = cores(seen)
    assert not core.holds
    assert why in core.why
    assert denoised(seen).values.equal(seen.values)


def test_negative_control_averaging_frozen_units_would_harm():
    """The server's plain average on masked carriers moves a payload that has no noise at all."""
    x, y = digits(2)
    seen = observe(method("lsg", sparsity=0.5), mlp(), x, y)
    (c,) = [c for c in seen.frame.coordinates if c.L is not None]
    dL, dR = seen.blocks[c.name, "L"], seen.blocks[c.name, "R"]
    assert float((average_core(dL, dR, c.L, c.R)[0] - dL).norm() / dL.norm()) > 0.01


def test_dense_methods_have_no_core():
    x, y = digits(1)
    seen = observe("dpsgd", mlp(), x, y)
    assert cores(seen) == ()
    assert denoised(seen).values.equal(seen.values)
