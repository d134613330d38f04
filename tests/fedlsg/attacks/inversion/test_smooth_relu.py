from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlsg.attacks.inversion.matching import ATTACKS, SmoothRelus, match
from fedlsg.attacks.inversion.prior import Prior, blind_guess
from fedlsg.attacks.metrics import psnr
from fedlsg.attacks.observation import Knowledge, Observation
from simulations.models.resnet import cifar_resnet
from tests.fedlsg.support.observed import digits, method, observe

PRIOR = Prior(shape=(1, 8, 8), mean=digits(500, 500)[0].mean(0))
QUICK = replace(ATTACKS["smooth-relu"], evaluations=100, restarts=1)
Z = torch.linspace(-3, 3, 61, dtype=torch.float64)


@pytest.mark.parametrize("relu", [nn.ReLU(), nn.ReLU(inplace=True), F.relu, torch.relu, Tensor.relu])
def test_every_relu_is_replaced_inside_and_none_outside(relu):
    def curvature() -> Tensor:
        z = Z.clone().requires_grad_()
        (first,) = torch.autograd.grad(relu(1 * z).square().sum(), z, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), z)
        return second

    exact = curvature()
    assert torch.equal(exact, 2.0 * (Z > 0))
    with SmoothRelus(1.0):
        smooth = curvature()
    assert (smooth - exact).abs().max() > 0.1
    assert torch.equal(curvature(), exact)


def residual_net() -> nn.Module:
    """ResNet-8 whose norms are the identity, as BatchNorm in eval mode is in an untrained network."""
    torch.manual_seed(0)
    return without_norms(cifar_resnet(8, channels=1, num_classes=10))


def without_norms(net: nn.Module) -> nn.Module:
    for name, child in net.named_children():
        if isinstance(child, nn.GroupNorm):
            setattr(net, name, nn.Identity())
        else:
            without_norms(child)
    return net


def gains(sent: int, *, sharpness: tuple[float, float] | None = QUICK.sharpness) -> float:
    """Decibels over the blind guess for image 1, from the payload of image ``sent``."""
    x, y = (tensor.float() if tensor.is_floating_point() else tensor for tensor in digits(1, 1))
    seen = seen_of(sent, y)
    known = Knowledge(labels=y, examples=1)
    attack = replace(QUICK, sharpness=sharpness)
    guess = match(seen, known, PRIOR, attack=attack, generator=torch.Generator().manual_seed(0))
    own, blind = (psnr(g.inputs.double(), x.double(), data_range=1.0) for g in (guess, blind_guess(PRIOR, known)))
    return (own - blind).item()


def seen_of(image: int, y: Tensor) -> Observation:
    return observe(method("dpsgd"), residual_net(), digits(1, image)[0].float(), y, dtype=torch.float32)


def test_an_image_comes_back_from_a_residual_network():
    assert gains(1) > 5
