"""The host waits for a device a few times in a private step, however many layers the model has."""

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg import strategies
from fedlsg.gradients import trainable
from fedlsg.masks import freezing, kinds
from fedlsg.method import LocalTraining, Schedule, aggregate, client_step, server_step
from fedlsg.privacy import clip
from fedlsg.randomness import reproducible_stream
from fedlsg.state import PublicState
from fedlsg.tensors import to_device
from fedlsg.training import make_optimizer
from tests.fedlsg.support.pretend_cuda import pretended_cuda

MOST = 7
"""Importance of units, shortcuts, rows of the batch (2), the clip, fractions for the noise, the
sum.
"""


def model_of(layers: int, device: str) -> nn.Module:
    torch.manual_seed(0)
    parts: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(layers):
        parts += [nn.GroupNorm(4, 32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(512, 40), nn.ReLU(), nn.Linear(40, 5)).to(
        device
    )


def step_of(layers: int, device: str, recipe: str, **settings: Any) -> Callable[[], None]:
    """A round of one client on its device, with its frame."""
    model = model_of(layers, device)
    method = strategies.recipe(recipe, learning_rate=0.1, **settings)
    public = PublicState.start(model, method, Schedule(rounds=9), seed=0, classifier=None)
    optimizer, scheduler = make_optimizer(trainable(model), method.server, updates=9)
    x, y = torch.randn(6, 3, 4, 4).to(device), torch.randint(5, (6,)).to(device)
    rounds = iter(range(1, 9))

    def step() -> None:
        now = next(rounds)
        frame = public.frame(now, updates=now)
        values = client_step(
            model,
            lambda rows: (x[rows.to(device)], y[rows.to(device)]),
            losses,
            frame=frame,
            mechanism=method.mechanism,
            local=LocalTraining(microbatch_size=6, expected_batch=6.0),
            num_examples=6,
            sampler=reproducible_stream(0, "rows"),
            noise=reproducible_stream(0, "noise"),
            charge=lambda: None,
        )
        server_step(
            model,
            optimizer,
            scheduler,
            aggregate([values]),
            frame=frame,
            divisor=6.0,
            server=method.server,
        )

    return step


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def waits_of(layers: int, recipe: str, **settings: Any) -> Counter[str]:
    with pytest.MonkeyPatch.context() as patch, pretended_cuda(patch) as device:
        step = step_of(layers, "cuda", recipe, **settings)
        step()
        device.waits.clear()
        step()
        return +device.waits


CASES = [("lsg", {"sparsity": 0.3}), ("rs", {"sparsity": 0.3}), ("dpsgd", {})]


@pytest.mark.parametrize(("recipe", "settings"), CASES)
def test_waits_do_not_grow_with_the_layers(recipe, settings):
    few, many = (waits_of(layers, recipe, **settings) for layers in (1, 3))
    assert few == many
    assert 2 <= many.total() <= MOST


def test_tensors_go_to_a_device_in_one_copy(monkeypatch):
    sent = [torch.arange(6.0).view(2, 3).mT, torch.zeros(0), torch.tensor(7.0), torch.ones(2, 2)]
    assert all(
        one is other for one, other in zip(to_device(sent, torch.device("cpu")), sent, strict=True)
    )
    with pretended_cuda(monkeypatch) as device:
        there = to_device(sent, torch.device("cuda", 0))
        assert all(t.is_cuda for t in there)
        assert not +device.waits
        assert all(torch.equal(t.cpu(), own) for t, own in zip(there, sent, strict=True))


def one_by_one(importances, sparsity, direction):
    return [freezing.keep_units(one.cpu(), sparsity, direction) for one in importances]


def asked_of_each(gradients, norms, mechanism, *, wide, shuffled=0):
    finite = norms.isfinite().all(0)
    given = [block if finite.all() else clip._zero_unless(finite, block) for block in gradients]
    return clip._weighted_total(given, norms, mechanism, None, wide=wide)


@pytest.mark.parametrize(
    ("place", "name", "plant"),
    [(kinds, "keep_units_of_each", one_by_one), (clip, "_sum_of_finite", asked_of_each)],
)
def test_waits_in_each_layer_are_noticed(place, name, plant, monkeypatch):
    monkeypatch.setattr(place, name, plant)
    few, many = (waits_of(layers, "lsg", sparsity=0.3) for layers in (1, 3))
    assert many.total() > few.total()


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"
)
@pytest.mark.parametrize(("recipe", "settings"), CASES)
def test_waits_for_a_device(recipe, settings):
    """As torch itself counts them."""
    found = []
    for layers in (1, 3):
        step = step_of(layers, "cuda", recipe, **settings)
        step()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found.append([str(one.message) for one in seen if "synchroniz" in str(one.message)])
    assert len(found[0]) == len(found[1])
    assert len(found[1]) <= MOST
