"""The same command on a CUDA device."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedlsg.randomness import own_draws, seed_draws

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"
    ),
]


@pytest.mark.parametrize("method", ["lsg", "rgp", "rs", "dpsgd", "sgd"])
def test_a_run_on_cuda_leaves_the_same_records_as_on_the_cpu(method, tmp_path):
    summaries = {}
    for device in ("cpu", "cuda"):
        command = [
            sys.executable,
            "-m",
            "fedlsg",
            "run",
            "digits",
            "--engine",
            "local",
            "--method",
            method,
        ]
        options = [
            "--device",
            device,
            "--rounds",
            "5",
            "--reproducible",
            "--out",
            str(tmp_path / device),
        ]
        subprocess.run([*command, *options], check=True)
        summaries[device] = json.loads((tmp_path / device / "summary.json").read_text())
    assert summaries["cuda"]["device"] == "cuda"
    for name in ("uplink_bytes", "downlink_bytes", "epsilon_max", "noise_multiplier"):
        assert summaries["cuda"][name] == summaries["cpu"][name]
    assert abs(summaries["cuda"]["accuracy"] - summaries["cpu"]["accuracy"]) < 0.02


@pytest.mark.parametrize("name", ["precision", "activation_storage"])
def test_a_run_in_fewer_bits_on_cuda(name, tmp_path):
    summaries = {}
    for bits in ("float32", "bfloat16"):
        command = [
            sys.executable,
            "-m",
            "fedlsg",
            "run",
            "digits",
            "--engine",
            "local",
            "--device",
            "cuda",
        ]
        options = [
            "--rounds",
            "5",
            "--reproducible",
            "-c",
            f"{name}={bits}",
            "--out",
            str(tmp_path / bits),
        ]
        subprocess.run([*command, *options], check=True)
        summaries[bits] = json.loads((tmp_path / bits / "summary.json").read_text())
    assert summaries["bfloat16"][name] == "bfloat16"
    assert summaries["bfloat16"]["epsilon_max"] == summaries["float32"]["epsilon_max"]
    assert abs(summaries["bfloat16"]["accuracy"] - summaries["float32"]["accuracy"]) < 0.05


def run(out: Path, *options: str) -> dict[str, Any]:
    """The summary of a small run."""
    command = [
        sys.executable,
        "-m",
        "simulations",
        "run",
        "digits",
        "--rounds",
        "3",
        "--reproducible",
        *options,
    ]
    subprocess.run([*command, "--out", str(out)], check=True)
    return json.loads((out / "summary.json").read_text())


@pytest.mark.ray
def test_flower_messages_ray_and_cuda_together(tmp_path):
    """Four workers share the GPU; what is charged and sent is that of the CPU."""
    on_ray = ("--engine", "ray", "--clients", "8", "-c", "client_gpus=0.25")
    here, there = (
        run(tmp_path / device, *on_ray, "--device", device) for device in ("cpu", "auto")
    )
    assert (here["device"], there["device"]) == ("cpu", "cuda")
    for name in (
        "uplink_bytes",
        "downlink_bytes",
        "epsilon_max",
        "noise_multiplier",
        "empty_rounds",
    ):
        assert here[name] == there[name]
    assert abs(here["accuracy"] - there["accuracy"]) < 0.05
    log = (tmp_path / "auto" / "run.log").read_text()
    assert log.count(f"clients of this process compute on {torch.cuda.get_device_name()}") >= 2
    assert "compute on" not in (tmp_path / "cpu" / "run.log").read_text()


def test_several_gpus_are_not_touched_by_one_process():
    """Torch's own generators are forked on the current device alone: no context is made on another
    GPU.
    """
    with own_draws("cuda"):
        seed_draws(3, "cuda")
        first = torch.rand(4, device="cuda")
        seed_draws(3, "cuda")
        assert torch.equal(torch.rand(4, device="cuda"), first)
    others = range(1, torch.cuda.device_count())
    assert not any(torch.cuda.memory_reserved(other) for other in others)
