"""The benchmark harness: its interval on a known case, ratios within rounds, and every arm on a tiny model."""

import json

import pytest
import torch
from torch import nn

from benchmarks.pairs import Estimate, estimate, interleave, summary, table, write
from benchmarks.speed.arms import OURS
from benchmarks.speed.rivals import RIVALS
from benchmarks.speed.step import device_peaks
from benchmarks.speed.subjects import Subject, on_device

FREE = ("vmap",)


def tiny() -> Subject:
    torch.manual_seed(0)

    def build() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 2))

    return Subject(build=build, inputs=torch.randn(4, 3, 4, 4), targets=torch.tensor([0, 1, 1, 0]), classifier="6")


def test_interval_of_the_median_of_a_known_case():
    """Of 1..101 the order statistics 41 and 61 bound the median with 95 %: 51 -+ 1.96 sqrt(101) / 2."""
    found = estimate(range(1, 102))
    assert found.median == 51
    assert 39 <= found.low <= 43
    assert 59 <= found.high <= 63
    assert estimate([3.0] * 30) == Estimate(median=3.0, low=3.0, high=3.0)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("lsg p=.5", *FREE) else pytest.mark.slow) for n in (*OURS, *FREE)]
)
def test_every_arm_steps_a_tiny_model(name, tmp_path):
    step, plain = (OURS | RIVALS)[name](tiny()), OURS["plain"](tiny())
    found = summary(interleave({"plain": plain, name: step}, pairs=1, warmup=0), ["plain"])
    assert name in table(found, "plain")
    write(tmp_path / "out.json", {"results": found})
    assert json.loads((tmp_path / "out.json").read_text())["results"][name]["cpu"]["median"] >= 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")
@pytest.mark.parametrize("name", [*OURS, *FREE])
def test_every_arm_steps_a_tiny_model_on_a_device(name):
    subject = on_device(tiny(), torch.device("cuda"))
    steps = {name: OURS[name](subject) if name in OURS else RIVALS[name](subject)}
    interleave(steps, pairs=1, warmup=0, settle=torch.cuda.synchronize)
    assert device_peaks(steps, torch.device("cuda"))[name] > 0
