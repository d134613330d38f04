"""Bytes that live at the peak of a step and behind it, counted tensor by tensor: no clock, no allocator."""

import gc
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import nn

import fedlsg.gradients.activation_storage
import fedlsg.gradients.hooks
import fedlsg.gradients.rematerialize
import fedlsg.training.server
from benchmarks.arms import plain, private
from benchmarks.subjects import Encoder, Subject
from fedlsg.carriers import Dense
from fedlsg.frame import Frame, make_blocks
from fedlsg.gradients.precision import FLOAT32, Precision
from fedlsg.gradients.supported import trainable
from fedlsg.public import Public
from fedlsg.training.server import server_step
from fedlsg.training.server_optimizer import ServerOptimizer, make_optimizer
from simulations.models.resnet import wide_resnet
from tests.fedlsg.support.live_bytes import live_bytes

MEGABYTE = 2**20


@pytest.fixture(autouse=True)
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors are made again, too; seeded."""
    torch.manual_seed(0)
    monkeypatch.setattr(fedlsg.gradients.rematerialize, "REMATERIALIZED_FROM", 1)


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


def over_plain(subject: Callable[[], Subject], sparsity: float, precision: Precision = FLOAT32) -> float:
    """Peak of a private step over that of the plain step."""
    return peak(private(subject(), "lsg", rank=1, sparsity=sparsity, precision=precision)) / plain_peak(subject)


LIMITS = {small_wrn: 0.92, small_encoder: 1.0}


@pytest.mark.parametrize("sparsity", [0.0, 0.5])
@pytest.mark.parametrize("subject", LIMITS)
def test_peak_memory_stays_below_the_plain_steps(subject, sparsity):
    assert over_plain(subject, sparsity) < LIMITS[subject]


STORED = Precision(activation_storage="bfloat16")


def left_after_a_step(precision: Precision = FLOAT32) -> int:
    """Bytes that no reference counter frees behind a step."""
    step = private(small_wrn(), "lsg", precision=precision)
    step()
    gc.collect()
    gc.disable()
    try:
        return live_bytes(step).now
    finally:
        gc.enable()


@pytest.mark.parametrize("precision", [FLOAT32, STORED])
def test_a_step_leaves_nothing_to_the_collector(precision):
    assert left_after_a_step(precision) == 0


def server_peak() -> int:
    """Peak of the server's step for 2^18 dense float32 weights, 1 MiB."""
    model = nn.Linear(512, 512, bias=False)
    weights = {name: p.detach() for name, p in trainable(model).items()}
    where = Dense().coordinates(Public(weights=weights))
    frame, server = Frame(coordinates=where, blocks=make_blocks(where)), ServerOptimizer(momentum=0.0)
    optimizer, scheduler = make_optimizer(trainable(model), server, updates=10, classifier="")
    total = torch.ones(2**18, dtype=torch.float64)
    return live_bytes(
        lambda: server_step(model, optimizer, scheduler, total, frame=frame, divisor=2.0, server=server)
    ).peak


def test_the_server_makes_no_second_vector_in_float64(monkeypatch):
    assert server_peak() < 1.6 * MEGABYTE
    monkeypatch.setattr(fedlsg.training.server, "AT_ONCE", 2**30)  # negative control: one run is the whole vector
    assert server_peak() > 2.5 * MEGABYTE
