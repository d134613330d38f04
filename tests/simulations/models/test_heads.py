"""Heads: which fit which features, their sizes, and that private training supports them."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fedlsg.gradients.per_example import per_example_gradients
from simulations.models import vision
from simulations.models.small import heads
from simulations.workloads.features.encode import ALONE, encode_rows
from simulations.workloads.features.encoders import image_encoder
from tests.fedlsg.support.gradient_oracle import TOLERANCE, cross_entropy, error, make_frame, naive

MAPS, VECTOR = (6, 4, 4), (10,)


@pytest.mark.parametrize(
    ("shape", "names"),
    [(VECTOR, ["linear", "mlp"]), (MAPS, ["linear", "mlp", "cnn"]), ((6, 3, 3), ["linear", "mlp", "cnn"])],
)
def test_heads_that_fit(shape, names):
    assert list(heads(shape, 3)) == names


def test_a_linear_head_starts_at_equal_chances():
    outputs = heads(VECTOR, 4)["linear"]()(torch.randn(3, 10))
    assert torch.equal(outputs.softmax(1), torch.full((3, 4), 0.25))


def test_the_cnn_is_that_of_tramer_and_boneh():
    """187 k parameters on the scattering features of CIFAR-10, as in Zhu and Blaschko 2023."""
    assert sum(p.numel() for p in heads((243, 8, 8), 10)["cnn"]().parameters()) == 187_210


def test_the_cnn_on_odd_maps_is_that_of_fashion_mnist():
    """33 k parameters, as in Zhu and Blaschko 2023."""
    assert sum(p.numel() for p in heads((81, 7, 7), 10)["cnn"]().parameters()) == 33_066


def logits_of_both(channels: int, side: int, *, norm: str = "group") -> tuple[Tensor, Tensor]:
    """Of the model h-cnn on images, and of the head ``cnn`` with its weights on the features that are cached."""
    torch.manual_seed(0)
    model = vision(channels, side, 10)["h-cnn"]()
    images = torch.rand(4, channels, side, side)
    encoder = image_encoder("scattering", (channels, side, side), {})
    features = encode_rows(images, ALONE[norm](encoder))
    head = heads(tuple(features.shape[1:]), 10)["cnn"]()
    head.load_state_dict(model.state_dict())  # the same names: scattering and its norm have no parameters
    return model(images), head(features)


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 28)])
def test_a_cnn_on_cached_features_is_h_cnn(channels, side):
    """Up to the half precision of the cache."""
    whole, cached = logits_of_both(channels, side)
    assert_close(cached, whole, atol=2e-3, rtol=0)


def test_the_norm_of_the_cached_features_counts():
    """The control: features of other values are seen."""
    whole, cached = logits_of_both(1, 28, norm="mirror")
    assert (whole - cached).abs().max() > 0.02


@pytest.mark.parametrize(("shape", "name"), [((6, 3, 3), "cnn"), (VECTOR, "linear"), (MAPS, "mlp"), (MAPS, "cnn")])
def test_per_example_gradients_equal_autograd(shape, name):
    torch.manual_seed(0)
    model = heads(shape, 3, width=4)[name]().double()
    x, targets = torch.randn(3, *shape).double(), torch.tensor([0, 1, 2])
    frame = make_frame(model, rank=2, sparsity=0.3)
    got = per_example_gradients(model, cross_entropy, x, targets, frame)
    assert error(got, naive(model, cross_entropy, x, targets, frame)) < TOLERANCE
