"""Whole runs on a pretended CUDA device: no operation mixes devices, and everything that is
recorded agrees.
"""

import pytest
import torch

from fedlsg.privacy import Mechanism, clipped_sum
from fedlsg.privacy.mechanism import add_noise
from fedlsg.randomness import secret_stream
from fedlsg.simulations.planning.base.training_rows import TrainingRows
from tests.fedlsg.support.pretend_cuda import pretended_cuda
from tests.simulations.support.runs import Run, resume_local, run_local, stopped_after

FEW = {"sample_rate": 0.02}
CASES = {
    "lsg": {"method": "lsg"},
    "rgp": {"method": "rgp"},
    "dpsgd": {"method": "dpsgd", "model": "conv"},
    "rs": {"method": "rs"},
    "lora": {"method": "lsg-lora"},
    "prune": {"method": "dp-ssgd"},
    "memory": {"method": "powersgd", "noise_multiplier": None},
    "conv": {"method": "lsg", "model": "conv", "local_steps": 2},
    "probe": {
        "method": "probe",
        "probes": 20,
        "refresh_rounds": 1,
        "model": "conv",
        "rank": 6,
        "out_rank": 4,
    },
    "probe, replica": {
        "method": "lsg-probe",
        "probes": 20,
        "downlink": "sparse",
        "codec": "noise-floor",
    },
    "replica": {"method": "lsg", "downlink": "sparse", "codec": "noise-floor"},
}


def alike(here: Run, there: Run) -> None:
    assert here.summary is not None
    assert there.summary is not None
    assert (here.summary["device"], there.summary["device"]) == ("cpu", "cuda")
    for name in ("uplink_bytes", "downlink_bytes", "epsilon_max", "noise_multiplier"):
        assert here.summary[name] == there.summary[name]
    assert (here.weights - there.weights.cpu()).abs().max() < 1e-4


QUICK = ("lsg", "rs", "conv", "probe, replica")


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_a_run_on_a_pretended_device_leaves_the_same_records(case, tmp_path, monkeypatch):
    here = run_local(tmp_path / "cpu", **FEW, **CASES[case])
    with pretended_cuda(monkeypatch):
        there = run_local(tmp_path / "cuda", **FEW, **CASES[case])
    alike(here, there)
    assert here.config["device"] == there.config["device"] == "auto"
    assert there.summary is not None
    assert there.summary["hardware"]["gpu"] == "pretended"
    assert "clients of this process compute on pretended" in there.log


def test_inputs_that_stay_on_the_cpu_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingRows, "fetch", property(lambda rows: rows.train.batch))
    with pretended_cuda(monkeypatch):
        broken = run_local(tmp_path, **FEW)
    assert "expected all tensors of aten::" in broken.log


def test_a_run_that_began_on_a_gpu_goes_on_without_one(tmp_path):
    with pytest.MonkeyPatch.context() as patch, pretended_cuda(patch):
        began = stopped_after(1, tmp_path, **FEW)
    assert began.checkpoint["plan"]["settings"]["device"] == "cuda"
    ended = resume_local(tmp_path)
    assert ended.summary is not None
    assert (ended.summary["rounds"], ended.summary["device"]) == (2, "cpu")


def launches(monkeypatch: pytest.MonkeyPatch) -> int:
    """Operations on the device for the sum of 64 clipped rows in float64, and its noise."""
    mechanism = Mechanism(kind="dp", clip_norm=1.0, noise_multiplier=1.0)
    with pretended_cuda(monkeypatch) as device:
        rows = torch.ones(64, 2**14).to("cuda")
        device.operations = 0
        add_noise(clipped_sum([rows], mechanism, wide=True), mechanism, secret_stream())
        return device.operations


def test_a_sum_in_float64_and_its_noise_take_few_launches(monkeypatch):
    """Parts that fit a processor's cache were 90 % of a dense step on a GPU: each part is a launch
    or three.
    """
    assert launches(monkeypatch) < 60
    monkeypatch.setattr("fedlsg.tensors.AT_ONCE_ON_DEVICE", 2**10)
    assert launches(monkeypatch) > 1000
