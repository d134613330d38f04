"""An exported folder reproduces the accuracy of its run in plain torch, without fedlsg."""

import json
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from fedlsg.simulations.cli.command_line import app
from fedlsg.simulations.models.plain_torch import source_of
from fedlsg.simulations.workloads.base.split import rescale, scale_of
from tests.simulations.support.own import TEST, quick

EVALUATE = """
import sys

sys.modules["fedlsg"] = None  # an import of it fails
import numpy as np, torch
from load import model, prepare

rows = np.load("rows.npz")
with torch.no_grad():
    outputs = model(prepare(torch.from_numpy(rows["inputs"])))
print(float((outputs.argmax(1) == torch.from_numpy(rows["labels"])).float().mean()))
"""


def accuracy_of(folder, inputs, labels, program=EVALUATE):
    np.savez(folder / "rows.npz", inputs=inputs, labels=labels)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def exported(run, folder):
    done = CliRunner().invoke(app, ["export", str(run.directory), "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("model", [pytest.param("mlp", marks=pytest.mark.slow), "conv"])
def test_load_py_reproduces_the_accuracy_of_digits(model, tmp_path):
    run = quick(
        tmp_path / "run",
        workload="digits",
        model=model,
        method="dpsgd",
        rounds=6,
        noise_multiplier=0.5,
        learning_rate=0.5,
    )
    folder = exported(run, tmp_path / "out")
    test = run._plan.workload.test
    stored, labels = test.inputs[np.arange(len(test))], test.labels.numpy()
    assert accuracy_of(folder, stored, labels) == pytest.approx(run.summary["accuracy"], abs=1e-6)
    wrong = EVALUATE.replace(
        'prepare(torch.from_numpy(rows["inputs"]))',
        'torch.from_numpy(rows["inputs"]).float() * 40 - 9',
    )
    assert accuracy_of(folder, stored, labels, wrong) != run.summary["accuracy"]  # control


def test_load_py_reproduces_a_model_of_ones_own(tmp_path):
    run = quick(tmp_path / "run", rounds=2)
    folder = exported(run, tmp_path / "out")
    facts = json.loads((folder / "fedlsg-run.json").read_text())
    assert "Tanh()" in facts["module"]
    assert facts["inputs"] is None
    assert accuracy_of(folder, *TEST) == pytest.approx(run.summary["accuracy"], abs=1e-6)


class Own(nn.Sequential):
    """Code of its own."""


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU()), True),
        (nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)), nn.GroupNorm(1, 2)), True),
        (nn.Linear(3, 2), True),
        (Own(nn.Linear(3, 2)), False),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding_mode="reflect")), False),
        (nn.MultiheadAttention(8, 1), False),
        (nn.Sequential(nn.Linear(3, 2, dtype=torch.float64)), True),
    ],
)
def test_a_source_builds_what_it_is_of_or_is_none(model, said):
    assert (source_of(model) is not None) == said


def test_only_the_function_that_rescales_has_a_scale():
    scale = {"offset": torch.tensor(1.0), "scale": torch.tensor(0.5)}
    assert scale_of(partial(rescale, **scale)) == {"offset": 1.0, "scale": 0.5}
    assert scale_of(partial(lambda stored, offset, scale: stored, **scale)) is None
    assert scale_of(rescale) is None
