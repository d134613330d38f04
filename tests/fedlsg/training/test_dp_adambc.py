"""DP-AdamBC by hand; the noise that it subtracts is that of the run, in every mode; what is unknown is refused."""

import math

import pytest
import torch
from torch import nn

from fedlsg.payload import check_fits, find_codec
from fedlsg.state.server_update import decode_update, encode_update
from fedlsg.training.dp_adambc import DPAdamBC
from fedlsg.training.server_optimizer import ServerOptimizer
from strategies import recipe
from tests.strategies.small_federation import server_state, values_for

ADAMBC = {"optimizer": "dp-adambc", "momentum": 0.0, "learning_rate": 0.01}


def by_hand(gradients: list[float], variance: float, lr: float, floor: float) -> float:
    """Tang et al. 2024, Algorithm 1: m' / sqrt(max(v' - phi, gamma'))."""
    w = m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w -= lr * (m / (1 - 0.9**t)) / math.sqrt(max(v / (1 - 0.999**t) - variance, floor))
    return w


def trained(gradients: list[float], variance: float, lr: float = 0.1, floor: float = 1e-8) -> float:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = DPAdamBC([weight], lr=lr, floor=floor)
    optimizer.variances = {weight: torch.full_like(weight, variance)}
    for g in gradients:
        weight.grad = torch.tensor([g], dtype=torch.float64)
        optimizer.step()
    return weight.item()


def test_one_step_by_hand():
    """g = 0.5, phi = 0.16: 0.1 * 0.5 / sqrt(0.25 - 0.16) = 0.05 / 0.3."""
    assert trained([0.5], 0.16) == pytest.approx(-0.05 / 0.3)


def test_the_floor_by_hand():
    """g = 0.3, phi = 0.16: 0.09 - 0.16 < 0, so the step is 0.1 * 0.3 / sqrt(0.04)."""
    assert trained([0.3], 0.16, floor=0.04) == pytest.approx(-0.03 / 0.2)


@pytest.mark.parametrize("variance", [0.0, 0.04, 0.25])
def test_it_is_the_papers_formula(variance):
    gradients = [0.5, -0.2, 0.7, 0.1, -0.9, 0.3]
    wanted = by_hand(gradients, variance, 0.1, 1e-3)
    assert trained(gradients, variance, floor=1e-3) == pytest.approx(wanted, rel=1e-9)
    if variance:  # negative control: half the variance is seen
        assert trained(gradients, variance / 2, floor=1e-3) != pytest.approx(wanted, rel=1e-2)


def test_a_variance_that_changes_is_averaged_as_the_squares_are():
    """Noise alone: where g^2 is phi in every step, nothing but the floor is left, however phi moves."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = DPAdamBC([weight], lr=0.1, floor=1e-8)
    for g in (0.5, -2.0, 1.0):
        weight.grad = torch.tensor([g], dtype=torch.float64)
        optimizer.variances = {weight: weight.grad.square()}
        optimizer.step()
    assert optimizer.state[weight]["exp_avg_sq"].item() == 0


def subtracted(state, noise_std: float) -> dict[str, torch.Tensor]:
    """What one round of the state subtracts, by parameter."""
    frame = state.frame()
    state.finish_round(frame, [values_for(frame, 0, 1)], noise_std=noise_std)
    names = {p: name for name, p in state.model.named_parameters()}
    return {names[p]: variance for p, variance in state.optimizer.variances.items()}


def test_the_server_subtracts_the_noise_over_the_divisor():
    """Deviation 2 in the sum over divisor 4, and a clip weight of 2 for the classifier: 0.25 and 0.0625."""
    found = subtracted(server_state("dpsgd", **ADAMBC, classifier_clip_weight=2.0), 2.0)
    assert set(found["0.weight"].flatten().tolist()) == set(found["0.bias"].tolist()) == {0.25}
    assert set(found["classifier.weight"].flatten().tolist()) == {0.0625}


def test_frozen_and_dropped_weights_have_no_noise_to_subtract():
    found = subtracted(server_state("rs", sparsity=0.5, cooling=False, **ADAMBC), 2.0)["0.weight"]
    assert sorted(set(found.flatten().tolist())) == [0.0, 0.25]
    found = subtracted(server_state("dpsgd", **ADAMBC, sparsify_update=0.5), 2.0)["0.weight"]
    assert int((found == 0).sum()) == found.numel() // 2


def test_a_downlink_codec_adds_its_variance():
    """noise-floor at step a = 1: variance 1 + 1/12 of the noise's, for server and replica alike."""
    state = server_state("dpsgd", **ADAMBC)
    frame, codec = state.frame(), find_codec("noise-floor").with_settings({"noise_floor_step": 1.0})
    step = encode_update(state, frame, values_for(frame, 0, 1).double(), noise_std=2.0, codec=codec)
    assert decode_update(state, frame, step, codec)[1] ** 2 == pytest.approx(4 * (1 + 1 / 12))


def test_without_noise_nothing_is_subtracted():
    assert set(subtracted(server_state("sgd", **ADAMBC), 0.0)["0.weight"].flatten().tolist()) == {0.0}


def test_unknown_noise_is_refused():
    with pytest.raises(ValueError, match="the variance of the noise, which is not known in the product"):
        recipe("dp-powersgd", **ADAMBC)
    with pytest.raises(ValueError, match="codec 'sign' leaves one of no known deviation; codecs that fit: 'float32'"):
        check_fits(find_codec("sign"), recipe("dpsgd", **ADAMBC))
    check_fits(find_codec("sign"), recipe("dpsgd", optimizer="adam"))
    check_fits(find_codec("noise-floor"), recipe("dpsgd", **ADAMBC))


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ({"optimizer": "dp-adambc", "momentum": 0.9}, "takes no momentum=0.9"),
        ({"optimizer": "dp-adambc", "adambc_floor": 0.0}, "0 < adambc_floor=0.0"),
        ({"optimizer": "adam", "adambc_floor": 1e-8}, "a setting of optimizer 'dp-adambc', not 'adam'"),
        ({"optimizer": "dp-adambc", "filter_b": "1"}, "a setting of optimizer 'doppler', not 'dp-adambc'"),
    ],
)
def test_settings_of_another_optimizer_are_refused(setting, part):
    with pytest.raises(ValueError, match=part):
        ServerOptimizer(**setting)
