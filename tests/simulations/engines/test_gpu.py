"""The same command on a CUDA device."""

import json
import subprocess
import sys

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
]


@pytest.mark.parametrize("method", ["lsg", "rgp", "rs", "dpsgd", "sgd"])
def test_a_run_on_cuda_leaves_the_same_records_as_on_the_cpu(method, tmp_path):
    summaries = {}
    for device in ("cpu", "cuda"):
        command = [sys.executable, "-m", "simulations", "run", "digits", "--engine", "local", "--method", method]
        options = ["--device", device, "--rounds", "5", "--reproducible", "--out", str(tmp_path / device)]
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
        command = [sys.executable, "-m", "simulations", "run", "digits", "--engine", "local", "--device", "cuda"]
        options = ["--rounds", "5", "--reproducible", "-c", f"{name}={bits}", "--out", str(tmp_path / bits)]
        subprocess.run([*command, *options], check=True)
        summaries[bits] = json.loads((tmp_path / bits / "summary.json").read_text())
    assert summaries["bfloat16"][name] == "bfloat16"
    assert summaries["bfloat16"]["epsilon_max"] == summaries["float32"]["epsilon_max"]
    assert abs(summaries["bfloat16"]["accuracy"] - summaries["float32"]["accuracy"]) < 0.05
