"""The benchmark harness: its interval on a known case, ratios within rounds, and every arm on a tiny model."""

import json

import pytest
import torch
from torch import nn

from benchmarks import pairs
from benchmarks.arms import OURS, in_channels_last
from benchmarks.pairs import Estimate, estimate, interleave, ratios, summary, table, write
from benchmarks.rivals import RIVALS
from benchmarks.subjects import Subject

FREE = ("vmap", "rgp reparametrised")


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


def test_ratios_are_taken_within_a_round():
    """A machine that is ten times slower in every second round changes no ratio; that of the medians it would."""
    slow = [1.0, 10.0] * 10
    found = ratios({"plain": slow, "half": [s / 2 for s in slow]}, "plain")
    assert found["half"] == Estimate(median=0.5, low=0.5, high=0.5)


def test_arms_take_turns_and_warm_up_is_not_kept(monkeypatch):
    monkeypatch.setattr(pairs, "CLOCKS", {"wall": iter(range(1000)).__next__})
    ran: list[str] = []
    found = interleave({name: lambda name=name: ran.append(name) for name in "abc"}, pairs=3, warmup=1)
    assert "".join(ran) == "abcbcacababc"
    assert {name: len(seconds) for name, seconds in found["wall"].items()} == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize("name", [*OURS, *FREE])
def test_every_arm_steps_a_tiny_model(name, tmp_path):
    step, plain = (OURS | RIVALS)[name](tiny()), OURS["plain"](tiny())
    found = summary(interleave({"plain": plain, name: step}, pairs=1, warmup=0), ["plain"])
    assert name in table(found, "plain")
    write(tmp_path / "out.json", {"results": found})
    assert json.loads((tmp_path / "out.json").read_text())["results"][name]["cpu"]["median"] >= 0


def test_channels_last_turns_images_and_kernels_only():
    turned = in_channels_last(tiny())
    assert turned.inputs.is_contiguous(memory_format=torch.channels_last)
    assert turned.build()[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(turned.inputs, tiny().inputs)
