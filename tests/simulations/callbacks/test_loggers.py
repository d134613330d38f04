"""MLflow and Weights & Biases, offline: what they hold of a run, of a resumed one, and of one that failed."""

import json
import time

import pytest

import fedlsg
from tests.simulations.support.own import quick


@pytest.fixture
def tracking(tmp_path, monkeypatch):
    """MLflow's client, on a store of this test."""
    mlflow = pytest.importorskip("mlflow", reason="pip install 'fedlsg[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return mlflow.MlflowClient()


def interrupt(row):
    if row["round"] == 1:
        raise KeyboardInterrupt


def only_run(client):
    (experiment,) = (one for one in client.search_experiments() if one.name == "mine")
    (run,) = client.search_runs([experiment.experiment_id])
    return run


def test_mlflow_has_settings_rounds_and_results(tracking, tmp_path):
    found = quick(tmp_path / "run", rounds=2, callbacks=[fedlsg.MLflow(experiment="mine")])
    run = only_run(tracking)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["rounds"] == "2"
    assert str(tmp_path) not in json.dumps(run.data.params), "no folder of this machine"
    assert run.data.metrics["final/accuracy"] == found.summary["accuracy"]
    history = tracking.get_metric_history(run.info.run_id, "epsilon/max")
    assert [(one.step, one.value) for one in history] == [(row["round"], row["epsilon_max"]) for row in found.rounds]


@pytest.mark.slow
def test_weights_and_biases_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="pip install 'fedlsg[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    found = quick(tmp_path / "run", rounds=2, callbacks=[fedlsg.WeightsAndBiases(project="mine")])
    identity = (found.directory / "wandb-run-id").read_text().strip()
    (file,) = (found.directory / "wandb").glob(f"offline-run-*/run-{identity}.wandb")
    deadline = time.monotonic() + 30  # a process of its own writes the file
    while b"final/accuracy" not in file.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert b"epsilon/max" in file.read_bytes()
    assert b"final/accuracy" in file.read_bytes()
    assert wandb.run is None, "finished"
    with pytest.raises(KeyboardInterrupt):
        quick(tmp_path / "other", rounds=2, callbacks=[fedlsg.WeightsAndBiases(), interrupt])
    assert wandb.run is None


def test_without_an_account_the_way_out_is_named(tmp_path, monkeypatch):
    """The error is that of a process that never logged in: init remembers earlier runs of this process."""
    wandb = pytest.importorskip("wandb", reason="pip install 'fedlsg[wandb]'")

    def init(**settings):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", init)
    with pytest.raises(ValueError, match=r"callbacks=wandb: No API key.* \(WANDB_MODE=offline needs no account\)"):
        quick(tmp_path / "run", rounds=2, callbacks=[fedlsg.WeightsAndBiases()])
