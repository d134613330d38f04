"""Diverged weights stop a run with one line, and everything up to the last finite round is there."""

import math
from typing import Any

import pytest

from simulations.server.diverged import explain
from simulations.settings.settings import from_mapping
from tests.simulations.support.runs import run_local

LARGE: dict[str, dict[str, Any]] = {
    "sgd": {"method": "sgd", "noise_multiplier": None, "learning_rate": 1e38},
    "dp": {"method": "lsg", "learning_rate": 1e38},
    "dense dp": {"method": "dpsgd", "learning_rate": 1e38},
    "momentum": {"method": "dpsgd", "learning_rate": 1e38, "momentum": 0.9},
    "adam": {"method": "lsg", "optimizer": "adam", "learning_rate": 1e38},
    "average": {"method": "lsg", "learning_rate": 1e38, "ema": 0.9},
    "late evaluation": {"method": "sgd", "noise_multiplier": None, "learning_rate": 1e38, "evaluate_every": 6},
    "sparse": {"method": "lsg", "learning_rate": 1e38, "downlink": "sparse"},
    "sparse int8": {"method": "lsg", "learning_rate": 1e38, "downlink": "sparse", "downlink_codec": "int8"},
    "sparse noise floor": {
        "method": "lsg", "learning_rate": 1e38, "downlink": "sparse", "downlink_codec": "noise-floor",
    },
    "sparse sgd": {"method": "sgd", "noise_multiplier": None, "learning_rate": 1e38, "downlink": "sparse"},
    "local steps": {"method": "sgd", "noise_multiplier": None, "learning_rate": 1e38, "local_steps": 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
def test_too_large_a_learning_rate_ends_the_run(kind, tmp_path, with_pages):
    """At the last finite round, with the round, the setting and its value in one line."""
    run = run_local(tmp_path / "run", rounds=6, **LARGE[kind])
    rate = f"{LARGE[kind]['learning_rate']:g}"
    assert run.summary["diverged"] is True
    assert f"learning_rate={rate} is likely too large" in run.summary["stopped"]
    ended = run.summary["rounds"] + 1
    assert run.summary["stopped"].startswith(f"round {ended} left ")
    assert 1 <= ended <= 6
    assert run.directory.last_round() == ended - 1
    assert math.isfinite(run.summary["loss"]) or kind == "late evaluation", "a round that nobody had looked at"
    assert all(bool(w.isfinite().all()) for w in run.model.values())
    assert f"failed: round {ended} left" in (run.path / "report.html").read_text()
    assert "no report.html" not in run.log
    if run.directory.rounds.exists():
        assert [row.round for row in run.rows] == list(range(1, ended))


@pytest.mark.parametrize(
    ("rates", "named"),
    [
        ({"learning_rate": 0.1}, "learning_rate=0.1"),
        ({"learning_rate": 0.1, "classifier_learning_rate": 1e9}, "classifier_learning_rate=1e+09"),
        ({"learning_rate": 0.1, "norms_learning_rate": 5.0}, "norms_learning_rate=5"),
        ({"learning_rate": 0.1, "local_learning_rate": 5.0, "local_steps": 1}, "learning_rate=0.1"),
        ({"learning_rate": 0.1, "local_learning_rate": 5.0, "local_steps": 2}, "local_learning_rate=5"),
    ],
)
def test_the_largest_rate_is_named(rates, named):
    assert f"round 7 left x: {named} is likely" in explain(RuntimeError("round 7 left x"), from_mapping(rates))
