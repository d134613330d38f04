"""Diverged weights stop a run with one line, and everything up to the last finite round is there."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedlsg.state.server_state import ServerState
from simulations.report.run_page import run_page
from simulations.rundir.results import read_run
from simulations.server.summary import explain
from simulations.settings.settings import from_mapping
from tests.simulations.support.runs import resume_local, run_local

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


def test_a_run_that_diverged_late_keeps_its_rounds(tmp_path, monkeypatch):
    """And its summary, weights and tables are those of the run that stops there."""

    def poisoned(state: Any, *arguments: Any, **options: Any) -> None:
        finish(state, *arguments, **options)
        if state.round == 3:
            with torch.no_grad():
                next(state.model.parameters()).view(-1)[0] = math.nan

    finish = ServerState.finish_round
    unbroken = run_local(tmp_path / "unbroken", rounds=4)
    monkeypatch.setattr(ServerState, "finish_round", poisoned)
    run = run_local(tmp_path / "run", rounds=4)
    assert run.summary["stopped"].startswith("round 3 left weights that are not finite")
    assert [row.accuracy for row in run.rows] == [row.accuracy for row in unbroken.rows[:2]]
    assert run.summary["accuracy"] == run.rows[-1].accuracy
    assert len(run.entries(0)) == 3, "the third round was charged all the same"
    monkeypatch.setattr(ServerState, "finish_round", finish)
    resumed = resume_local(run.path)
    assert resumed.weights.equal(unbroken.weights)
    assert resumed.summary["diverged"] is False


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


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_report_takes_a_loss_that_is_no_number(loss, small):
    """Of a run that an earlier version went on with."""
    result = read_run(small.path)
    rows = tuple(replace(row, loss=loss) for row in result.rows)
    page = run_page(replace(result, rows=rows, summary={**result.summary, "loss": str(loss)}))
    assert f"loss {loss}" in page
