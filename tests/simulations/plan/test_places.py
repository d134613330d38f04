"""Settings that name files keep their absolute paths, so that a run continues in any folder; names of data stay."""

from pathlib import Path

import pytest
import torch
from rich.console import Console

from simulations.plan.start import from_root
from simulations.run import run_command
from simulations.rundir.rundir import RunDir
from simulations.rundir.updates import write_model
from tests.simulations.support.runs import SMALL

WEIGHTS = {"hidden.weight": torch.full((64, 64), 0.01), "hidden.bias": torch.arange(64.0) / 64}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A working folder with weights of a run, and public rows."""
    folder = tmp_path / "here"
    (folder / "my weights").mkdir(parents=True)
    write_model(
        folder / "my weights", WEIGHTS,
        {"fedlsg": "0.1.0", "workload": "digits", "model": "mlp", "pretrained_on": {"source": "leaves"}},
    )  # fmt: skip
    (folder / "minilm").mkdir()
    torch.save((torch.rand(30, 1, 8, 8), torch.arange(30) % 10), folder / "rows.pt")
    monkeypatch.chdir(folder)
    return folder


def test_paths_are_from_the_root_and_names_stay(here):
    given = {
        "pretrained": "my weights",
        "features": "my weights",
        "source": "data:rows.pt",
        "public_rows": "data:rows.pt",
    }
    rows = f"data:{here / 'rows.pt'}"
    weights = str(here / "my weights")
    expected = {"pretrained": weights, "features": weights, "source": rows, "public_rows": rows}
    assert from_root(given) == from_root(expected) == expected
    for names in (
        {"pretrained": "none", "features": "scattering", "source": "leaves", "public_rows": "synthetic"},
        {"pretrained": "owner/name", "features": "minilm", "source": "data:digits", "public_rows": "data:cifar10"},
        {"source": "data:nowhere", "public_rows": None, "rank": 4},
    ):
        assert from_root(names) == names


def test_a_run_continues_in_another_folder(here, tmp_path, monkeypatch):
    given = {**SMALL, "workload": "digits", "method": "probe", "rounds": 1, "probes": 20}
    run_command({**given, "pretrained": "my weights", "source": "data:rows.pt"}, "out", Console(quiet=True))
    monkeypatch.chdir(tmp_path)
    kept = RunDir(here / "out").read_config()
    assert kept.pretrained == str(here / "my weights")
    assert kept.parameters["source"] == f"data:{here / 'rows.pt'}"
