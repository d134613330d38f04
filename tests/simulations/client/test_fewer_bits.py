"""Runs in fewer bits: recorded, refused by name, and the same client on every path."""

import pytest
import torch

from simulations.cli.app import app as cli
from tests.simulations.support.runs import Run, run_local

FEWER = {"precision": "bfloat16", "activation_storage": "bfloat16"}
METHODS = ("lsg", "dpsgd", "sgd", "lora", "lsg-lora", "rs")


@pytest.mark.parametrize("method", METHODS)
def test_a_run_says_in_which_bits_it_was_made(method, tmp_path):
    noise = {"noise_multiplier": None} if method == "sgd" else {}
    given = {"method": method, "local_steps": 1 if "lora" in method else 2, **noise}
    exact, fewer = (run_local(tmp_path / name, **given, **bits) for name, bits in (("exact", {}), ("fewer", FEWER)))
    assert {fewer.summary[name] for name in FEWER} == {fewer.config[name.replace("_", "-")] for name in FEWER}
    assert {fewer.summary[name] for name in FEWER} == {"bfloat16"}
    assert {exact.summary[name] for name in FEWER} == {"float32"}
    assert {w.dtype for w in fewer.model.values()} == {torch.float32}
    assert [fewer.entries(i) for i in range(2)] == [exact.entries(i) for i in range(2)]  # same steps, noise and clip
    assert fewer.summary["epsilon_max"] == exact.summary["epsilon_max"]
    distance = (fewer.weights - exact.weights).norm() / exact.weights.norm()
    assert 0 < distance < 0.02


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("method", ["lsg", "dpsgd"])
def test_engines_agree_bit_for_bit_in_fewer_bits(method, tmp_path, on_ray):
    options = ["--method", method, "--rounds", "2", "--clients", "2", "--noise-multiplier", "2", "--reproducible"]
    options += ["--record-updates", *(word for name in FEWER for word in ("-c", f"{name}=bfloat16"))]
    a, b = Run(tmp_path / "a"), Run(tmp_path / "b")
    cli(["run", "--engine", "local", "--out", str(a.path), *options], standalone_mode=False)
    cli(["run", "--engine", "ray", "--out", str(b.path), *options], standalone_mode=False)
    assert a.weights.equal(b.weights)
    assert len(a.payloads) == 4
    assert a.payloads == b.payloads
    assert a.ledgers == b.ledgers
