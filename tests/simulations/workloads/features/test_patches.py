"""``features=patches`` and ``feature_axes`` in a run, and what clients and server agree on."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from fedlsg.simulations import workloads
from fedlsg.simulations.client.node.conditions import check_features
from fedlsg.simulations.client.node.node_config import TermsError
from fedlsg.simulations.models import patches
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.workloads.base import Options
from fedlsg.simulations.workloads.features import axes
from fedlsg.simulations.workloads.features.encode import UNIT_LENGTH
from tests.simulations.support.runs import run_local

PATCHES = {"features": "patches", "patch_filters": 8, "patch_size": 3}


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(patches, "LEAVES", 20)
    monkeypatch.setattr(axes, "LEAST_ROWS", 40)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, {"name": "patches", "values": 64, "norm": "leaves+unit"}),
        ({"feature_axes": 12}, {"name": "patches", "values": 12, "norm": "none", "axes": 12}),
    ],
)
def test_a_head_trains_on_them(more, said, few_digits, tmp_path):
    run = run_local(tmp_path / "run", **PATCHES, **more, method="dpsgd", model="linear")
    assert dict(run.summary["features"]).items() >= said.items()
    inputs = run.plan.workload.train.batch(torch.arange(5))[0].flatten(1)
    assert torch.allclose(inputs.norm(dim=1), torch.full((5,), UNIT_LENGTH), rtol=1e-3)


def test_axes_are_those_of_a_decomposition():
    x = torch.randn(30, 50, generator=torch.Generator().manual_seed(0))
    mean, found = axes.axes_of(x, 4)
    _, values, right = np.linalg.svd((x - mean).double().numpy(), full_matrices=False)
    scale = ((values[:4] / values[0]) ** 2 + axes.DAMPING) ** axes.POWER
    assert np.allclose(np.abs(found.T.numpy()), np.abs(right[:4] * scale[:, None]), atol=1e-4)
    mean, wide = axes.axes_of(torch.cat([x, x, x]), 4)  # more rows than features
    assert torch.allclose(wide, found, atol=1e-4)


def test_more_axes_than_features_are_refused():
    with pytest.raises(ValueError, match="feature_axes=51: these features have 29 axes"):
        axes.axes_of(torch.randn(30, 50), 51)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"feature_axes": 3}, "feature_axes=3 is for public features: give features"),
        ({"patch_size": 5}, "patch_size=5 is for public features: give features"),
        ({"features": "scattering", "patch_size": 5}, "patch_size=5 is for features=patches"),
    ],
)
def test_settings_without_use_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Options(**options)


def test_a_client_with_other_filters_is_refused(few_digits, tmp_path, monkeypatch):
    """The code is the same: the digest is of the filters' bits, as another machine may make them."""
    here = workloads.load("digits", options=Options(**PATCHES))
    monkeypatch.setattr(patches, "ZCA_DAMPING", 0.2)
    monkeypatch.setenv("FEDLSG_CACHE", str(tmp_path))
    there = workloads.load("digits", options=Options(**PATCHES))
    server, client = (
        SimpleNamespace(workload=w, settings=Options(**PATCHES)) for w in (here, there)
    )
    check_features(cast(Base, server), here.features_digest)
    with pytest.raises(
        TermsError, match="features=patches: filters, axes or normalisation here differ"
    ):
        check_features(cast(Base, client), here.features_digest)
