"""The models: published parameter counts, shapes by hand, public and repeatable weights, gradients of small ones."""

from functools import partial

import pytest
import torch
from torch import nn

from fedlsg.gradients.per_example import per_example_gradients
from fedlsg.gradients.supported import check_supported
from simulations import models
from simulations.models import vision
from simulations.models.resnet import wide_resnet
from simulations.models.small import small_cnn
from tests.fedlsg.support.gradient_oracle import TOLERANCE, cross_entropy, error, make_frame, naive

MODELS = {
    "mlp": (models.digits_mlp, (1, 8, 8)),
    "conv": (models.digits_conv, (1, 8, 8)),
    "cnn": (partial(small_cnn, 3, 32, 10), (3, 32, 32)),
    "cnn-wide": (partial(small_cnn, 3, 32, 10, width=32), (3, 32, 32)),
}
ALLOWED = (nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm, nn.Tanh, nn.AvgPool2d, nn.MaxPool2d, nn.Flatten)


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_can_be_made_private(name):
    leaves = [module for module in MODELS[name][0]().modules() if not list(module.children())]
    assert all(isinstance(leaf, ALLOWED) for leaf in leaves), leaves
    assert len({id(leaf) for leaf in leaves}) == len(leaves)
    assert not any(getattr(leaf, "inplace", False) for leaf in leaves)


def mixes_examples(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether one example's logits change when the other examples of its batch do."""
    model.train()
    images = torch.randn(4, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    other = torch.cat([images[:1], images[1:] * 3])
    model.double()
    return not torch.allclose(model(images)[0], model(other)[0], atol=1e-9)


SMALL = {
    form: (partial(wide_resnet, 10, 1, channels=1, num_classes=2, form=form), (1, 8, 8))
    for form in ("rgp", "standard", "standardized")
}


@pytest.mark.parametrize(("builder", "shape"), (MODELS | SMALL).values(), ids=[*MODELS, *SMALL])
def test_no_layer_mixes_examples(builder, shape):
    assert not mixes_examples(builder(), shape)


CIFAR, FASHION = (3, 32, 10), (1, 28, 10)
FORMS = ("rgp", "standard", "standardized", "gain")


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


SHAPES = [(1, 8, 10), (1, 28, 10), (3, 32, 10), (3, 32, 100), (3, 30, 7), (4, 64, 5), (3, 96, 2), (3, 224, 20)]


@pytest.mark.parametrize(
    "shape", [pytest.param(s, marks=() if s in ((1, 8, 10), CIFAR, SHAPES[-1]) else pytest.mark.slow) for s in SHAPES]
)
def test_every_model_fits_its_shape_and_can_be_made_private(shape):
    channels, side, num_classes = shape
    for name in vision(*shape):
        model = empty(shape, name)
        check_supported(model)
        assert model(torch.zeros(2, channels, side, side, device="meta")).shape == (2, num_classes), name
        assert isinstance(model.get_submodule("classifier"), nn.Linear)
        assert list(model.parameters())[-1] is list(model.get_submodule("classifier").parameters())[-1]
        assert not any(getattr(m, "inplace", False) for m in model.modules())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("carry", [True, False])
def test_per_example_gradients_of_a_small_wide_resnet_equal_autograd(form, carry):
    torch.manual_seed(0)
    model = wide_resnet(10, 2, channels=2, num_classes=3, form=form).double()
    for name, parameter in model.named_parameters():
        if name.endswith("gain"):  # which start as ones
            nn.init.uniform_(parameter, -1, 2)
    x, targets = torch.randn(2, 2, 8, 8).double(), torch.tensor([0, 2])
    frame = make_frame(model, rank=2, sparsity=0.3 if carry else 0.0, carry=carry)
    got = per_example_gradients(model, cross_entropy, x, targets, frame)
    assert error(got, naive(model, cross_entropy, x, targets, frame)) < TOLERANCE
