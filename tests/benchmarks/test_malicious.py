"""Crafted weights through the client's own step: what is read without noise, and nothing with noise."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import strategies
from benchmarks.privacy.audit_malicious import verdict
from benchmarks.privacy.craft import fishing, imprint, traps
from benchmarks.privacy.read import read
from fedlsg.attacks.inversion.prior import Prior, prior_from
from fedlsg.attacks.metrics import best_matching, psnr, squared_errors
from fedlsg.attacks.observation import DoesNotApply, Guess, Observation
from fedlsg.carriers import prepare_model
from fedlsg.method import LocalTraining, Schedule, client_step
from fedlsg.randomness import reproducible_stream
from fedlsg.state import PublicState


def images(count: int, seed: int) -> torch.Tensor:
    """Correlated 8 x 8 images in [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.linspace(0.05, 1, 64).unsqueeze(1) * torch.randn(64, 64, generator=torch.Generator().manual_seed(9))
    return torch.tanh(0.15 * torch.randn(count, 64, generator=generator) @ mix).reshape(count, 1, 8, 8)


def network() -> nn.Module:
    torch.manual_seed(0)
    parts = OrderedDict(flatten=nn.Flatten(), hidden=nn.Linear(64, 64), tanh=nn.Tanh(), classifier=nn.Linear(64, 10))
    return nn.Sequential(parts)


def guess_of(
    kind: str, mechanism: str = "clip-only", name: str = "dpsgd", **settings: float
) -> tuple[Guess, torch.Tensor, Prior]:
    prior = prior_from(images(500, 1), low=-1.0, high=1.0)
    x, y = images(6, 2), torch.tensor([0, 1, 2, 3, 4, 5])
    method = strategies.recipe(name, mechanism=mechanism, clip_norm=0.5, **settings)
    model = prepare_model(network(), method.carrier, classifier="classifier", seed=0)
    public = PublicState.start(model, method, Schedule(rounds=1), seed=0, classifier="classifier")
    crafted = {
        "imprint": lambda: imprint(model, prior),
        "traps": lambda: traps(model, prior, batch=6, generator=torch.Generator().manual_seed(3)),
        "fishing": lambda: fishing(model, target=0),
    }[kind]()
    model.load_state_dict(crafted, strict=False)
    frame, local = public.frame(1, updates=0), LocalTraining(expected_batch=6.0)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    values = client_step(
        model, lambda rows: (x[rows], y[rows]), loss, frame=frame, mechanism=method.mechanism, local=local,
        num_examples=6, sampler=reproducible_stream(0, "s"), charge=lambda: None, noise=reproducible_stream(0, "n"),
    )  # fmt: skip
    seen = Observation(
        model=model, loss_fn=loss, frame=frame, values=values, mechanism=method.mechanism, local=local,
        noise_std=method.mechanism.noise_std,
    )  # fmt: skip
    return read(seen, prior, kind), x, prior


def recovered(kind: str, mechanism: str = "clip-only", name: str = "dpsgd", **settings: float) -> int:
    """Images of six with a guess above 20 dB."""
    guess, x, _ = guess_of(kind, mechanism, name, **settings)
    order, truths = best_matching(squared_errors(guess.inputs, x))
    return int((psnr(guess.inputs[order], x[truths].double(), data_range=2.0) > 20).sum())


@pytest.mark.parametrize(("kind", "least"), [("imprint", 3), ("traps", 2), ("fishing", 1)])
@pytest.mark.parametrize("mechanism", ["none", "clip-only"])
def test_crafted_weights_show_inputs_and_the_clip_does_not_help(kind, least, mechanism):
    assert recovered(kind, mechanism) >= least


@pytest.mark.parametrize("kind", ["imprint", "traps", "fishing"])
def test_noise_leaves_nothing(kind):
    try:
        found = recovered(kind, "dp", noise_multiplier=1.0)
    except DoesNotApply:
        found = 0
    assert found == 0


def test_the_audit_at_crafted_weights_reaches_the_claim_and_sees_halved_noise():
    """300 canaries: too few for a proof, enough for the estimate. Negative controls: random weights, halved noise."""
    arms = {"crafted": (True, None), "halved": (True, "halved-noise"), "random": (False, None)}
    found = {
        arm: verdict("lsg, r 8, p .3", crafted=crafted, plant=plant, epsilon=8.0, seeds=3)
        for arm, (crafted, plant) in arms.items()
    }
    assert not found["crafted"].falsified
    assert found["crafted"].estimate.epsilon.low < 8.0 < found["crafted"].estimate.epsilon.high
    assert found["random"].estimate.epsilon.high < 8.0 < found["halved"].estimate.epsilon.low
