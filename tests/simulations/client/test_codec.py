"""Codecs, indices and runs in fewer bits: bytes, what the server applies, what is recorded and
refused.
"""

import math
import struct

import pytest
import torch

from fedlsg.payload.layout import COMPACT
from fedlsg.state.server_state import ServerState
from tests.simulations.support.runs import plan_at, run_local

SIGMA = 2.0


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    ("codec", "settings"),
    [
        ("int8", {}),
        ("int8", {"method": "sgd", "noise_multiplier": None}),
        ("int8", {"method": "dp-powersgd"}),
        ("noise-floor", {"mechanism": "noise-only"}),
        ("noise-floor", {"method": "lora"}),
        ("noise-floor", {"method": "rs", "ranking": "gradients", "sample_rate": 0.5, "clients": 1}),
        ("noise-floor", {"method": "dp-ssgd", "prune": "dp-snip", "local_steps": 2}),
        ("noise-floor", {"batch_size": 8, "sample_rate": None, "clients": 3}),
        ("noise-floor", {"indices": "explicit"}),
    ],
)
def test_every_kind_of_run_takes_it(codec, settings, tmp_path):
    run = run_local(tmp_path / "run", codec=codec, **settings)
    assert [row.rejected for row in run.rows] == ["", ""]
    assert [len(row.answered.split()) for row in run.rows] == [settings.get("clients", 2)] * 2


def test_the_step_follows_the_noise_of_all_local_steps(tmp_path):
    """Three steps with momentum 1/2: noise k is in the sum 1 + mu + ... times, 7/4, 3/2 and 1."""
    settings = {"local_steps": 3, "local_momentum": 0.5, "clip_norm": 0.1, "noise_floor_step": 0.25}
    run = run_local(tmp_path / "run", codec="noise-floor", record_updates=True, **settings)
    noise_std = SIGMA * 0.1 * math.sqrt(1.75**2 + 1.5**2 + 1)
    for payload in run.payloads.values():
        assert struct.unpack_from("<f", payload, COMPACT.size)[0] == pytest.approx(
            0.25 * noise_std, rel=1e-6
        )
    assert run.summary["codec"]["added_variance"] == 0.25**2 / 12


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"mechanism": "clip-only", "noise_multiplier": None}, "mechanism 'clip-only' adds none"),
        ({"method": "sgd", "noise_multiplier": None}, "mechanism 'none' adds none"),
        ({"trust": "aggregate"}, "trust=aggregate needs codec=float32 .got noise-floor"),
        ({"method": "dp-powersgd"}, "'dp-powersgd' sends factors"),
        ({"noise_floor_step": 0.0}, "0 < noise_floor_step=0.0"),
        ({"noise_floor_step": math.nan}, "noise_floor_step"),
        (
            {"codec": "int8", "noise_floor_step": 0.5},
            "needs codec=noise-floor or .*, got codec=int8",
        ),
    ],
)
def test_refused(settings, why, tmp_path):
    with pytest.raises(ValueError, match=why):
        plan_at(tmp_path / "run", **{"codec": "noise-floor", **settings})


@pytest.mark.parametrize(
    ("codec", "factor"), [("float32", 1.0), ("noise-floor", math.sqrt(1 + 0.25 / 12))]
)
def test_the_server_knows_the_noise_of_the_sum(codec, factor, tmp_path, monkeypatch):
    """What ranked sparsification gives to frozen coordinates: two clients' noise, and the error of
    their grids.
    """
    told, finish = [], ServerState.finish_round

    def listen(state, frame, updates, *, noise_std):
        told.append(noise_std)
        finish(state, frame, updates, noise_std=noise_std)

    monkeypatch.setattr(ServerState, "finish_round", listen)
    run = run_local(tmp_path / "run", codec=codec, rounds=1)
    clip = run.plan.method.mechanism.clip_norm
    assert told == [pytest.approx(SIGMA * clip * math.sqrt(2) * factor)]


FEWER = {"precision": "bfloat16", "activation_storage": "bfloat16"}
METHODS = ("lsg", "dpsgd", "sgd", "lora", "lsg-lora", "rs")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_says_in_which_bits_it_was_made(method, tmp_path):
    noise = {"noise_multiplier": None, **({} if method == "sgd" else {"mechanism": "clip-only"})}
    given = {"method": method, "local_steps": 1 if "lora" in method else 2, **noise}
    exact, fewer = (
        run_local(tmp_path / name, **given, **bits)
        for name, bits in (("exact", {}), ("fewer", FEWER))
    )
    assert {fewer.summary[name] for name in FEWER} == {
        fewer.config[name.replace("_", "-")] for name in FEWER
    }
    assert {fewer.summary[name] for name in FEWER} == {"bfloat16"}
    assert {exact.summary[name] for name in FEWER} == {"float32"}
    assert {w.dtype for w in fewer.model.values()} == {torch.float32}
    # same steps, noise and clip
    assert [fewer.entries(i) for i in range(2)] == [exact.entries(i) for i in range(2)]
    assert fewer.summary["epsilon_max"] == exact.summary["epsilon_max"]
    distance = (fewer.weights - exact.weights).norm() / exact.weights.norm()
    assert 0 < distance < 0.02
