"""Reproducible steps and runs against recorded numbers, and with the old draws against older ones.

``NEW`` is of the commit that gave noise an exact law. ``OLD`` is of commit 2b19fbd6, whose noise
was float64 normals; its local steps divided by the mean of all clients' batches, so the run of
three local steps is of the commit that divides by the client's own. ``tests.noise.old_noise``
injects its draws, so that all else of a step is compared. Where this machine computes as that which recorded (``alike``), weights and payloads are
equal bit for bit. Elsewhere products are rounded differently: one number of each run is compared up
to that.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.noise import old_noise, old_normals
from tests.simulations.client_level.test_runs import CLIENT_LEVEL
from tests.simulations.support.runs import run_local
from tests.strategies.own_loop import batch, made, weights


class Recorded(NamedTuple):
    """``digest``: of the final weights, and payloads. ``value``: a random projection of the
    weights.
    """

    digest: str
    value: float


STEPS = ("sgd", "dpsgd", "lsg", "lsg per block", "rs", "dp-ssgd snip", "dp-powersgd", "lsg-lora")
RUNS: Mapping[str, Mapping[str, Any]] = {
    "lsg in three local steps": {"method": "lsg", "local_steps": 3},
    "dpsgd in few bits": {"method": "dpsgd", "codec": "noise-floor"},
    "pruning": {"method": "dp-ssgd", "prune": "dp-snip"},
    "adaptive clip of clients": CLIENT_LEVEL | {"clip_quantile": 0.5, "clip_count_noise": 3.0},
}


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def recorded(final: Tensor, *payloads: bytes) -> Recorded:
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(len(final), generator=generator, dtype=torch.float64)
    value = float(final.double() @ direction) / float(direction.norm())
    return Recorded(digest(final.numpy().tobytes(), *payloads), value)


def after_steps(name: str) -> Recorded:
    """Eight private steps of a recipe."""
    step = made(name)
    for _ in range(8):
        step.step(batch)
    return recorded(weights(step))


def after_run(name: str, folder: Path) -> Recorded:
    """Two rounds on the local engine."""
    run = run_local(folder / "run", record_updates=True, **RUNS[name])
    return recorded(run.weights, *run.payloads.values())


@cache
def alike() -> bool:
    """Whether what has no noise, and the old draws alone, come out here as where they were
    recorded, by torch's instructions for AVX2.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX2":
        return False
    words = np.arange(1, 4001, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    drawn = digest(old_normals(words).numpy().tobytes())
    return (after_steps("sgd").digest, drawn) == (OLD["sgd"].digest, NORMALS)


def check(found: Recorded, wanted: Recorded) -> None:
    assert found.value == pytest.approx(wanted.value, abs=5e-4)
    assert not alike() or found.digest == wanted.digest


NORMALS = "7c11714fc6b728db"
OLD: Mapping[str, Recorded] = {
    "sgd": Recorded("f842fb2672aecc0f", 0.121819),
    "dpsgd": Recorded("4c219d037161f597", 0.510917),
    "lsg": Recorded("33cd59e068b3c5ca", 0.106496),
    "lsg per block": Recorded("c2898fb554f2657a", 0.117208),
    "rs": Recorded("60489d187cb5e96d", 0.114837),
    "dp-ssgd snip": Recorded("fbb84a5a3c11d33f", 0.065344),
    "dp-powersgd": Recorded("3b56abbde15df030", 0.145641),
    "lsg-lora": Recorded("9f23c2a708eb8721", 0.065326),
    "lsg in three local steps": Recorded("da54354bee508f35", -0.044060),
    "dpsgd in few bits": Recorded("602c46ff241ef776", 0.028769),
    "pruning": Recorded("bf744d6e95db3937", 0.001061),
    "adaptive clip of clients": Recorded("737c2ab48be8a06c", 0.243392),
}


NEW: Mapping[str, Recorded] = OLD | {
    "dpsgd": Recorded("ac19eded3acf7f6d", 1.246811),
    "lsg": Recorded("e5dccded5cdff066", 0.117041),
    "lsg per block": Recorded("7a37a403038bb9ff", 0.121088),
    "rs": Recorded("512df3bb8d990630", 0.053574),
    "dp-ssgd snip": Recorded("4878917664992d05", 0.230423),
    "dp-powersgd": Recorded("fa32bcae5feb8b44", 0.149490),
    "lsg-lora": Recorded("87ceb4627a870069", 0.108136),
    "lsg in three local steps": Recorded("bf699018f7b3d0d0", 0.017818),
    "dpsgd in few bits": Recorded("352edec0f6d9375b", 0.003568),
    "pruning": Recorded("f8bed18b2064b077", 0.025135),
    "adaptive clip of clients": Recorded("0a00e2a8997ebbe2", -0.460902),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", STEPS)
def test_steps_with_the_old_draws_are_those_of_before(name):
    with old_noise():
        check(after_steps(name), OLD[name])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", RUNS)
def test_runs_with_the_old_draws_are_those_of_before(name, tmp_path):
    with old_noise():
        check(after_run(name, tmp_path), OLD[name])


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_as_recorded(name):
    check(after_steps(name), NEW[name])


@pytest.mark.parametrize("name", RUNS)
def test_runs_are_as_recorded(name, tmp_path):
    check(after_run(name, tmp_path), NEW[name])


@pytest.mark.parametrize("name", ["dpsgd", "lsg"])
def test_other_draws_are_found(name):
    assert after_steps(name).value != pytest.approx(OLD[name].value, abs=5e-4)
