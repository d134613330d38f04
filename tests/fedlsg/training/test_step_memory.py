"""Bytes that live at the peak of a step and behind it, counted tensor by tensor: no clock, no
allocator.
"""

import gc
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import nn

import fedlsg.gradients.hooked_pass.hooks
import fedlsg.gradients.hooked_pass.rematerialization
import fedlsg.training.server_round
from benchmarks.speed.arms import plain, private
from benchmarks.speed.subjects import Encoder, Subject
from fedlsg.gradients.hooked_pass.precision import FLOAT32, Precision
from fedlsg.simulations.models.resnet import wide_resnet
from tests.fedlsg.support.live_bytes import live_bytes


@pytest.fixture(autouse=True)
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors are made again, too; seeded."""
    torch.manual_seed(0)
    monkeypatch.setattr(fedlsg.gradients.hooked_pass.rematerialization, "REMATERIALIZED_FROM", 1)


def small_wrn() -> Subject:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return wide_resnet(10, 1, channels=3, num_classes=10, form="standard")

    return Subject(build=build, inputs=torch.randn(16, 3, 16, 16), targets=torch.arange(16) % 10)


def small_encoder() -> Subject:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return Encoder(layers=2, width=32, heads=4, length=32)

    return Subject(build=build, inputs=torch.randint(1000, (16, 32)), targets=torch.arange(16) % 2)


def peak(step: Callable[[], object]) -> int:
    """Of a step's live tensors, after a first one."""
    step()
    gc.collect()
    return live_bytes(step).peak


@cache
def plain_peak(subject: Callable[[], Subject]) -> int:
    return peak(plain(subject()))


def over_plain(
    subject: Callable[[], Subject], sparsity: float, precision: Precision = FLOAT32
) -> float:
    """Peak of a private step over that of the plain step."""
    return peak(
        private(subject(), "lsg", rank=1, sparsity=sparsity, precision=precision)
    ) / plain_peak(subject)


LIMITS = {small_wrn: 0.92, small_encoder: 1.0}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("sparsity", [0.0, 0.5])
@pytest.mark.parametrize("subject", LIMITS)
def test_peak_memory_stays_below_the_plain_steps(subject, sparsity):
    assert over_plain(subject, sparsity) < LIMITS[subject]
