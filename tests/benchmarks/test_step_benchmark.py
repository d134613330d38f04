"""The benchmark harness: its interval on a known case, ratios within rounds, and every arm on a tiny model."""

import json
from argparse import ArgumentParser

import pytest
import torch
from torch import nn

import fedlsg.training.client
from benchmarks import pairs
from benchmarks.arms import OURS, in_channels_last
from benchmarks.pairs import Estimate, estimate, interleave, ratios, summary, table, write
from benchmarks.rivals import RIVALS
from benchmarks.step import device_of, device_peaks
from benchmarks.subjects import Subject, on_device
from benchmarks.work import flops, work_table
from fedlsg.training.microbatches import runs_of
from tests.fedlsg.support.pretend_cuda import CUDA, pretended_cuda

LABELS = torch.arange(9) % 2
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


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("lsg p=.5", *FREE) else pytest.mark.slow) for n in (*OURS, *FREE)]
)
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


def test_operations_of_a_known_product():
    """(4, 3) times (3, 5): 60 multiplications, 60 additions. The floor forms no gradient of a weight, plain does."""
    left, right = torch.randn(4, 3), torch.randn(3, 5)
    assert flops(lambda: left @ right) == 120
    counted = {name: flops(OURS[name](tiny())) for name in ("plain", "floor", "lsg p=0")}
    assert counted["floor"] < counted["plain"]
    assert counted["floor"] < counted["lsg p=0"]


def test_the_table_of_work_divides_by_seconds_of_the_wall():
    found = {name: {"wall": {"median": seconds}} for name, seconds in {"floor": 0.5, "own": 2.0}.items()}
    assert work_table(found, {"own": 4 * 10**12}).endswith("| own | 4.0000 | 2.000 | 25% |")


def test_a_missing_device_is_named(capsys):
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(SystemExit):
        device_of("cuda", ArgumentParser())
    assert "finds no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*OURS, *FREE])
def test_every_arm_steps_on_a_pretended_device_in_one_pass(name, monkeypatch):
    """Off the CPU a microbatch has what a batch hardly ever exceeds, or fewer: benchmarks declare their batch."""
    passes = []
    monkeypatch.setattr(fedlsg.training.client, "runs_of", lambda *a: passes.append(runs_of(*a)) or passes[-1])
    with pretended_cuda(monkeypatch) as mode:
        subject = on_device(Subject(**{**vars(tiny()), "inputs": torch.randn(9, 3, 4, 4), "targets": LABELS}), CUDA)
        (OURS | RIVALS)[name](subject)()
    assert mode.operations > 10
    assert all(len(runs) == 1 for runs in passes)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")
@pytest.mark.parametrize("name", [*OURS, *FREE])
def test_every_arm_steps_a_tiny_model_on_a_device(name):
    subject = on_device(tiny(), torch.device("cuda"))
    steps = {name: OURS[name](subject) if name in OURS else RIVALS[name](subject)}
    interleave(steps, pairs=1, warmup=0, settle=torch.cuda.synchronize)
    assert device_peaks(steps, torch.device("cuda"))[name] > 0
