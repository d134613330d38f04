"""Checkpoints of De et al. 2022: their logits after conversion, every form of file, and what is
refused.
"""

import numpy as np
import pytest
import torch
from torch import nn

from examples.convert_weights import converted
from fedlsg.simulations.models.resnet import wide_resnet
from tests.simulations.support.haiku_wrn import Params, logits, made_params


def flat(params: Params) -> dict[str, np.ndarray]:
    return {
        f"params/{module}/{leaf}": array
        for module, leaves in params.items()
        for leaf, array in leaves.items()
    }


def build(
    found: tuple[str, dict[str, torch.Tensor]], depth: int = 10, width: int = 1, classes: int = 5
) -> nn.Module:
    model = wide_resnet(depth, width, channels=3, num_classes=classes, form="gain")
    model.load_state_dict(found[1])
    return model.double()


def furthest(model: nn.Module, params: Params, side: int) -> float:
    """Largest difference of logits from their forward pass."""
    x = np.random.default_rng(1).normal(0, 1, (2, side, side, 3))
    ours = model(torch.from_numpy(x).permute(0, 3, 1, 2)).detach().numpy()
    return float(np.abs(ours - logits(params, x)).max())


@pytest.mark.parametrize(("depth", "width", "side"), [(10, 1, 12), (16, 2, 8), (10, 2, 9)])
def test_logits_are_theirs(depth, width, side):
    params = made_params(0, depth=depth, width=width)
    found = converted(flat(params))
    assert found[0] == f"wrn-{depth}-{width}-gain"
    assert furthest(build(found, depth, width), params, side) < 1e-9
