"""The variance of the noise in the server's gradients: the sum of squared coefficients of the linear map, by itself."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedlsg.forms import FORMS, FormName
from fedlsg.frame import Coordinates, Frame, make_blocks
from fedlsg.method import Schedule
from fedlsg.state import PublicState
from fedlsg.training.noise_variance import noise_variances
from strategies import recipe

STD = 0.3


def net() -> nn.Module:
    """A convolution and a linear layer that rank 2 carries, norms, a classifier."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 6, 3, padding=1), nn.GroupNorm(1, 6), nn.Tanh(), nn.Flatten(), nn.Linear(24, 8)]
    model = nn.Sequential(*layers)
    model.add_module("classifier", nn.Linear(8, 3))
    return model


def frame_of(method: str, **choices: object) -> Frame:
    how = recipe(method, **choices)
    return PublicState.start(net(), how, Schedule(rounds=3), seed=0, classifier="classifier").frame(1, updates=0)


def by_basis(frame: Frame, *, averaged: bool) -> dict[str, Tensor]:
    """STD^2 times the sum over kept values of the squared gradient that each unit value makes."""
    total = {c.name: torch.zeros(c.shape, dtype=torch.float64) for c in frame.coordinates}
    for unit in torch.eye(frame.kept, dtype=torch.float64):
        for name, gradient in frame.gradients(unit, averaged=averaged).items():
            total[name] += STD**2 * gradient.square()
    return total


def in_double(frame: Frame) -> Frame:
    where = tuple(
        Coordinates(name=c.name, shape=c.shape, form=c.form, L=None if c.L is None else c.L.double(),
                    R=None if c.R is None else c.R.double())
        for c in frame.coordinates
    )  # fmt: skip
    return Frame(coordinates=where, blocks=frame.blocks)


def core_frame(r: int = 2, s: int = 4, form: FormName = "core") -> Frame:
    """Scaled carriers L (5, r) and R (s, 7), with a dense bias."""
    torch.manual_seed(1)
    L, R = torch.randn(5, r).double(), 3 * torch.randn(s, 7).double()
    where = (Coordinates(name="W", shape=(5, 7), L=L, R=R, form=FORMS[form]), Coordinates(name="b", shape=(5,)))
    return Frame(coordinates=where, blocks=make_blocks(where))


def embedding_frame(form: FormName) -> Frame:
    """W (5, 7) as one column in a basis L (35, 3); rests weigh 2.5 in the clip."""
    L = torch.linalg.qr(torch.randn(35, 3, generator=torch.Generator().manual_seed(1)).double())[0]
    where = (Coordinates(name="W", shape=(5, 7), L=L, R=torch.ones(1, 1).double(), form=FORMS[form]),)
    return Frame(
        coordinates=where,
        blocks=tuple(replace(b, weight=2.5) if b.part == "rest" else b for b in make_blocks(where)),
    )


FRAMES = {
    "dense, weighed": lambda: frame_of("dpsgd", classifier_clip_weight=2.0, norms_clip_weight=0.5),
    "frozen weights": lambda: frame_of("rs", sparsity=0.6),
    "tangent": lambda: frame_of("lsg", rank=2, sparsity=0.0),
    "tangent, frozen units, weighed": lambda: frame_of("lsg", rank=2, sparsity=0.5, classifier_clip_weight=2.0),
    "core": core_frame,
    "preconditioned": lambda: core_frame(5, 7, "preconditioned"),
    "embedding": lambda: embedding_frame("embedding"),
    "embedding-only": lambda: embedding_frame("embedding-only"),
}


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("name", FRAMES)
def test_it_is_that_of_the_lifted_values(name, averaged):
    frame = in_double(FRAMES[name]())
    wanted = by_basis(frame, averaged=averaged)
    found = noise_variances(frame, STD, like=torch.zeros(1, dtype=torch.float64), averaged=averaged)
    assert found.keys() == wanted.keys()
    for parameter, variance in wanted.items():
        torch.testing.assert_close(found[parameter], variance, rtol=1e-5, atol=1e-9)


def test_half_the_variance_is_seen():
    """Negative control of the comparison above; and carriers matter: no coordinate of W has the noise of a value."""
    frame = in_double(FRAMES["tangent"]())
    found = noise_variances(frame, STD, like=torch.zeros(1, dtype=torch.float64))
    wanted = by_basis(frame, averaged=False)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(found["4.weight"] / 2, wanted["4.weight"], rtol=1e-5, atol=1e-9)
    assert not torch.isclose(wanted["4.weight"], torch.tensor(STD**2).double(), rtol=1e-3).any()


def test_of_drawn_noise():
    """The same in samples: 4,000 draws, five standard errors of a variance."""
    frame = FRAMES["tangent, frozen units, weighed"]()
    generator = torch.Generator().manual_seed(0)
    found = noise_variances(frame, STD, like=torch.zeros(1))["4.weight"]
    drawn = [frame.gradients(STD * torch.randn(frame.kept, generator=generator))["4.weight"] for _ in range(4_000)]
    measured = torch.stack(drawn).var(dim=0)
    off = ((measured / found.clamp_min(1e-12) - 1).abs() / (2 / 4_000) ** 0.5)[found > 1e-6]
    assert off.max() < 5
    assert off.median() < 1
