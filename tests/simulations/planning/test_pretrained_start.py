"""Runs that start from public weights: the same ones in every process and after a pause, or none at
all.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedlsg.simulations import workloads
from fedlsg.simulations.models.pretrained import digest_of
from fedlsg.simulations.models.small import digits_mlp
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.start_weights import from_root, with_digest
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.updates import write_model
from fedlsg.simulations.workloads.features.encoders import written
from tests.simulations.support.own import workload
from tests.simulations.support.runs import resume_local, run_local, stopped_after

RUN = {"workload": "digits", "model": "mlp", "method": "dpsgd"}


@pytest.fixture
def weights(tmp_path) -> Path:
    """A folder as examples/convert_weights.py leaves it."""
    folder = tmp_path / "pre"
    folder.mkdir()
    tensors = {"hidden.weight": torch.full((64, 64), 0.01), "hidden.bias": torch.arange(64.0) / 64}
    write_model(
        folder,
        tensors,
        {"fedlsg": "0.1.0", "workload": "digits", "pretrained_on": {"source": "leaves"}},
    )
    return folder


def base(**settings):
    return prepare(from_mapping({**RUN, "noise_multiplier": 2.0, **settings}))


def test_the_initial_model_has_the_weights_and_a_fresh_classifier(weights):
    started, plain = base(pretrained=str(weights)), base()
    model, fresh = started.initial.model().state_dict(), plain.initial.model().state_dict()
    stored = load_file(weights / "model.safetensors")
    assert all(torch.equal(model[name], stored[name]) for name in stored)
    assert all(
        torch.equal(model[name], fresh[name]) for name in fresh if name.startswith("classifier")
    )
    assert started.settings.pretrained_sha256 == digest_of(str(weights))
    assert plain.settings.pretrained_sha256 is None


@pytest.mark.parametrize("method", ["dpsgd", "lsg"])
def test_a_resumed_run_ends_as_one_without_a_pause(method, weights, tmp_path):
    given = {**RUN, "method": method, "rounds": 3, "pretrained": str(weights)}
    whole = run_local(tmp_path / "whole", **given)
    stopped_after(1, tmp_path / "paused", **given)
    assert torch.equal(resume_local(tmp_path / "paused").weights, whole.weights)


def test_weights_that_the_rows_of_the_workload_trained_are_refused(weights, tmp_path):
    """By a run, whose epsilon would be missing; or as public data, which they now are not."""
    run = run_local(tmp_path / "run", **RUN)
    for source in (run.path, run.path / "model.safetensors"):
        with pytest.raises(
            ValueError, match="was trained on the rows of digits, which the epsilon of this run"
        ):
            base(pretrained=str(source))
    facts = {"fedlsg": "0.1.0", "workload": "cifar10", "pretrained_on": {"source": "data:digits"}}
    shutil.rmtree(weights)
    weights.mkdir()
    write_model(
        weights, {"hidden.weight": torch.zeros(64, 64), "hidden.bias": torch.zeros(64)}, facts
    )
    with pytest.raises(ValueError, match="was trained on the rows of digits"):
        base(pretrained=str(weights))


@pytest.mark.parametrize("read", [{"public_rows": "data:digits"}, {"source": "data:digits"}])
def test_so_are_weights_of_another_workload_that_read_them_as_public(read, tmp_path):
    """To train on, without noise; or to probe the model with."""
    images = np.random.default_rng(0).integers(0, 17, (40, 1, 8, 8), dtype=np.uint8)
    own = workload(
        train=(images[:30], np.arange(30) % 10),
        test=(images[30:], np.arange(10)),
        model=digits_mlp,
        num_classes=10,
        transform=lambda stored: stored.float() / 16,
    )
    how = {"method": "probe", "probes": 20, "rank": 16, "out_rank": 16}
    how = {"method": "sgd", "noise_multiplier": None} if "public_rows" in read else how
    workloads.give("other", own)
    try:
        run = run_local(tmp_path / "other", workload="other", **how, **read)
    finally:
        workloads._GIVEN.pop("other")
    assert json.loads((run.path / "config.json").read_text())["public_data"] == ["data:digits"]
    with pytest.raises(ValueError, match="was trained on the rows of digits"):
        base(pretrained=str(run.path))


@pytest.mark.parametrize("setting", ["pretrained", "features"])
def test_so_are_features_of_such_weights_and_weights_that_come_from_them(
    setting, weights, tmp_path
):
    facts = {
        "fedlsg": "0.1.0",
        "workload": "digits",
        "method": "dpsgd",
        "model": "mlp",
        "options": {},
    }
    later = tmp_path / "later"
    later.mkdir()
    tensors = load_file(weights / "model.safetensors")
    write_model(weights, tensors, facts)
    write_model(later, tensors, {**facts, "workload": "mnist", "options": {setting: str(weights)}})
    for source in (weights, later):
        with pytest.raises(ValueError, match=rf"^{setting}=\S+ was trained on the rows of digits"):
            base(**{setting: str(source)})
    write_model(later, tensors, {**facts, "workload": "mnist"})
    prepare(
        from_mapping(
            {"workload": "digits", "method": "dpsgd", "noise_multiplier": 2.0, setting: str(later)}
        )
    )


@pytest.mark.parametrize("name", ["patches", "scattering", "minilm"])
def test_no_folder_hides_built_in_features(name, weights, tmp_path, monkeypatch):
    """A run directory of the name, made on the same rows; ./NAME is the folder."""
    facts = {"fedlsg": "0.4.0", "workload": "digits", "method": "dpsgd", "model": "mlp"}
    tensors = load_file(weights / "model.safetensors")
    (tmp_path / name).mkdir()
    write_model(tmp_path / name, tensors, {**facts, "options": {"features": name}})
    monkeypatch.chdir(tmp_path)
    assert written(name) is None
    given = {"workload": "digits", "method": "dpsgd", "noise_multiplier": 2.0, "features": name}
    assert with_digest(from_root(from_mapping(given))).features == name
    folder = from_root(from_mapping({**given, "features": f"./{name}"}))
    assert folder.features == str(tmp_path / name)
    with pytest.raises(ValueError, match="was trained on the rows of digits"):
        with_digest(folder)


def test_so_are_weights_whose_first_ancestor_is_gone(tmp_path):
    """Every run keeps what the weights before it have seen."""
    first = run_local(tmp_path / "first", **RUN)
    own = workload(
        train=(np.zeros((30, 1, 8, 8), np.uint8), np.arange(30) % 10),
        model=digits_mlp,
        num_classes=10,
        test=(np.zeros((10, 1, 8, 8), np.uint8), np.arange(10)),
        transform=lambda stored: stored.float() / 16,
    )
    workloads.give("other", own)
    try:
        later = run_local(
            tmp_path / "later", workload="other", method="dpsgd", pretrained=str(first.path)
        )
    finally:
        workloads._GIVEN.pop("other")
    assert json.loads((later.path / "config.json").read_text())["rows_behind"] == ["data:digits"]
    shutil.rmtree(first.path)
    with pytest.raises(ValueError, match="was trained on the rows of digits"):
        base(pretrained=str(later.path))
