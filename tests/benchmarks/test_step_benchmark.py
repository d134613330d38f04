"""The benchmark harness: its interval on a known case, ratios within rounds, and every arm on a tiny model."""

import json

import pytest
import torch
from torch import nn

from benchmarks.arms import OURS
from benchmarks.pairs import interleave, summary, table, write
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


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("lsg p=.5", *FREE) else pytest.mark.slow) for n in (*OURS, *FREE)]
)
def test_every_arm_steps_a_tiny_model(name, tmp_path):
    step, plain = (OURS | RIVALS)[name](tiny()), OURS["plain"](tiny())
    found = summary(interleave({"plain": plain, name: step}, pairs=1, warmup=0), ["plain"])
    assert name in table(found, "plain")
    write(tmp_path / "out.json", {"results": found})
    assert json.loads((tmp_path / "out.json").read_text())["results"][name]["cpu"]["median"] >= 0
