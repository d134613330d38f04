"""Workloads on features: what is loaded, runs from end to end, whose models, and what is
refused.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedlsg
from fedlsg.simulations import workloads
from fedlsg.simulations.client.node.node_config import form_of
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.updates import write_model
from fedlsg.simulations.workloads import Options
from tests.simulations.support.own import refused
from tests.simulations.support.runs import run_local

SCATTERING = {"workload": "digits", "features": "scattering"}


def images(count: int, seed: int, side: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Bright or dark images (count, 1, side, side) uint8 and their class."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, count)
    return (
        draw.integers(0, 128, (count, 1, side, side)) + 100 * labels[:, None, None, None]
    ).astype(np.uint8), labels


def build() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))


def own_images(**changes) -> fedlsg.Workload:
    given = {
        "model": build,
        "train": images(40, 1),
        "test": images(12, 2),
        "loss": nn.CrossEntropyLoss(),
    }
    return fedlsg.Workload(**{**given, "transform": lambda x: x / 255, "name": "bright", **changes})


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("method", "model"),
    [("dpsgd", "linear"), ("linear-probe", "mlp"), ("lsg", "mlp"), ("lsg", "cnn"), ("rs", "cnn")],
)
def test_every_head_trains_by_any_method(method, model, few_digits, tmp_path):
    run = run_local(tmp_path / "run", **SCATTERING, method=method, model=model, evaluate_every=2)
    said = dict(run.summary["features"])
    assert len(said.pop("digest")) == 64
    assert said == {"name": "scattering", "values": 324, "norm": "group"}
    assert run.plan.workload.train.inputs.shape[1:] == (81, 2, 2)
    head = {
        "linear": 324 * 10 + 10,
        "mlp": 324 * 64 + 64 + 650,
        "cnn": 81 * 64 * 9 + 64**2 * 9 + 128 + 650,
    }[model]
    assert run.plan.initial.dense_parameters == head


def test_own_rows_of_a_client_become_the_features_that_the_run_has(few_digits, tmp_path, own_cache):
    """They are cached in the client's folder, as private as the rows; the server opens no training
    row.
    """
    options = Options(features="scattering")
    whole = workloads.load("digits", options=options)
    raw = workloads.load("digits").train
    np.savez(tmp_path / "rows.npz", inputs=raw.inputs[:5], labels=raw.labels[:5].numpy())
    before = set(own_cache.iterdir())
    public = workloads.load("digits", options=options, public_only=True)
    assert len(public.train) == 0
    own = public.read(tmp_path / "rows.npz", tmp_path / "ledgers")
    assert set(own_cache.iterdir()) == before
    assert len(list((tmp_path / "ledgers").iterdir())) == 1
    np.testing.assert_array_equal(own.inputs, whole.train.inputs[:5])
    assert torch.equal(own.labels, raw.labels[:5])


def test_other_features_are_another_form_of_a_clients_rows(few_digits):
    """A client keeps a digest of its rows as they are read: it must not compare features with
    pixels.
    """
    forms = set()
    for given in (
        {},
        {"features": "scattering"},
        {"features": "scattering", "feature_norm": "none"},
    ):
        settings = from_mapping({"workload": "digits", **given})
        forms.add(form_of(settings, workloads.load("digits", options=Options(**given))))
    assert len(forms) == 3


def written_network(folder: Path, *, channels: int = 1, classes: int = 4, **facts: object) -> Path:
    """A folder as every run leaves it: a ``cnn`` of images (channels, 8, 8)."""
    from fedlsg.simulations.models import vision

    torch.manual_seed(3)
    model = vision(channels, 8, classes)["cnn"]()
    folder.mkdir(parents=True)
    write_model(folder, model.state_dict(), {"fedlsg": "0", "model": "cnn", **facts})
    return folder


def test_other_weights_at_the_same_place_are_other_features(tmp_path, own_cache):
    folder = written_network(tmp_path / "leaves")
    workloads.give("bright", own_images())
    workloads.load("bright", options=Options(features=str(folder)))
    torch.manual_seed(4)
    from fedlsg.simulations.models import vision

    write_model(folder, vision(1, 8, 4)["cnn"]().state_dict(), {"fedlsg": "0", "model": "cnn"})
    workloads.load("bright", options=Options(features=str(folder)))
    assert len(list(own_cache.iterdir())) == 4


@pytest.mark.slow
def test_statistics_of_synthetic_inputs_depend_on_no_private_row():
    options = Options(features="scattering", feature_norm="leaves")
    found = []
    for seed in (1, 9):
        workloads.give(f"bright{seed}", own_images(train=images(5, seed)))
        found.append(
            workloads.load(f"bright{seed}", options=options).test.batch(torch.arange(12))[0]
        )
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"features": "scattering", "feature_norm": "batch"},
            ["unknown part of feature_norm 'batch'", "group, pool, unit, leaves, pink"],
        ),
        ({"feature_norm": "group"}, ["feature_norm=group", "give features, too"]),
        ({"head_width": 8}, ["head_width=8", "give features, too"]),
        (
            {"features": "scattering", "head_width": 8},
            ["head_width=8 is for model=mlp and model=cnn"],
        ),
        (
            {"features": "scattering", "pretrained": "x"},
            ["features=scattering is frozen", "leave pretrained=x out"],
        ),
        ({"features": "scattering", "train_layers": 1}, ["leave train_layers=1 out"]),
        ({"features": "scatering"}, ["unknown features 'scatering'", "did you mean 'scattering'?"]),
    ],
)
def test_wrong_options_are_refused(options, words, few_digits):
    with refused(*words):
        workloads.load("digits", options=Options(**options))
