"""The models: published parameter counts, shapes by hand, public and repeatable weights, gradients
of small ones.
"""

import pytest
import torch
from torch import nn

from fedlsg.gradients.hooked_pass.supported import check_supported
from fedlsg.simulations.models import vision

CIFAR, FASHION = (3, 32, 10), (1, 28, 10)


def empty(shape: tuple[int, int, int], name: str) -> nn.Module:
    """The model without memory for its weights."""
    with torch.device("meta"):
        return vision(*shape)[name]()


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def convolutions(model: nn.Module) -> int:
    return sum(isinstance(m, nn.Conv2d) for m in model.modules())


@pytest.mark.parametrize(
    ("shape", "name", "parameters", "layers"),
    [
        (CIFAR, "cnn", 127_114, 4),
        (CIFAR, "cnn-wide", 505_098, 4),
        (CIFAR, "cnn-wide-ws", 505_098, 4),
        (CIFAR, "dp-cnn", 550_570, 6),  # Zhu and Blaschko 2023, Table 2: 550K
        (FASHION, "dp-cnn", 26_010, 2),  # Zhu and Blaschko 2023, Table 2: 26K
        (CIFAR, "wrn-28-4", 5_828_800, 25),  # the official code of Yu et al. 2021: 5.83 M
        (CIFAR, "wrn-28-4-standard", 5_849_050, 28),  # Zagoruyko and Komodakis, Table 4: 5.8 M
        (CIFAR, "wrn-16-4", 2_748_890, 16),  # the same: 2.7 M
        (CIFAR, "wrn-28-10", 36_479_194, 28),  # the same: 36.5 M
        (CIFAR, "resnet-34", 21_282_122, 36),
        (CIFAR, "resnet-20", 272_474, 21),  # He et al. Table 6: 0.27 M
    ],
)
def test_published_sizes(shape, name, parameters, layers):
    model = empty(shape, name)
    assert (count(model), convolutions(model)) == (parameters, layers)


SHAPES = [
    (1, 8, 10),
    (1, 28, 10),
    (3, 32, 10),
    (3, 32, 100),
    (3, 30, 7),
    (4, 64, 5),
    (3, 96, 2),
    (3, 224, 20),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(s, marks=() if s in ((1, 8, 10), CIFAR, SHAPES[-1]) else pytest.mark.slow)
        for s in SHAPES
    ],
)
def test_every_model_fits_its_shape_and_can_be_made_private(shape):
    channels, side, num_classes = shape
    for name in vision(*shape):
        model = empty(shape, name)
        check_supported(model)
        assert model(torch.zeros(2, channels, side, side, device="meta")).shape == (
            2,
            num_classes,
        ), name
        assert isinstance(model.get_submodule("classifier"), nn.Linear)
        assert (
            list(model.parameters())[-1] is list(model.get_submodule("classifier").parameters())[-1]
        )
        assert not any(getattr(m, "inplace", False) for m in model.modules())
