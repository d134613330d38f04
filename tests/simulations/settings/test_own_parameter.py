"""A method or a codec with a parameter of its own is one new file: every way of giving settings
takes it.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedlsg import strategies
from fedlsg.payload.layout import COMPACT
from fedlsg.simulations.cli.command_line import app as cli
from fedlsg.simulations.settings.resolve import build_method, uplink_codec
from tests.fedlsg.support.coarse_codec import planted
from tests.simulations.support.runs import Run

WIDE = """
from typing import Annotated
from fedlsg.masks import Mask
from fedlsg.method import Method
from fedlsg.config import Setting

def recipe(*, width: Annotated[int, Setting("Width of the mask.", "tenths", at_least=1, at_most=9)] = 2,
           mechanism, server):
    mask = Mask(kind="uniform", sparsity=width / 10)
    return Method(name="wide", mask=mask, mechanism=mechanism, server=server)
"""
SHORT = (
    "--method",
    "wide",
    "--engine",
    "local",
    "--clients",
    "2",
    "--rounds",
    "1",
    "--noise-multiplier",
    "2",
)


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with one more recipe."""
    folder = tmp_path / "more-recipes"
    folder.mkdir()
    (folder / "wide.py").write_text(WIDE)
    monkeypatch.setattr(strategies.recipes, "__path__", [*strategies.recipes.__path__, str(folder)])
    yield
    sys.modules.pop("fedlsg.strategies.recipes.wide", None)


@pytest.mark.slow
@pytest.mark.usefixtures("wide")
def test_a_run_takes_it_and_its_files_say_it(fedlsg, tmp_path):
    status, out, err = fedlsg("run", *SHORT, "-c", "width=3", "--out", "run")
    assert (status, err) == (0, ""), out
    run = Run(tmp_path / "run")
    assert run.config["width"] == 3
    assert list(run.config)[-2:] == ["run-dir", "width"], (
        "files of before keep the order of their keys"
    )
    assert build_method(run.directory.read_config()).mask.sparsity == 0.3
    assert fedlsg("resume", "run")[0] == 0
    assert fedlsg("run", *SHORT, "--out", "again")[0] == 0
    assert Run(tmp_path / "again").config["width"] == 2, (
        "config.toml says the recipe's own default, too"
    )


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("width=0", "expected 1 <= width=0 <= 9"),
        ("width=x", "expected a number (int) for width, got 'x'"),
        ("widht=3", "unknown setting 'widht'; did you mean 'width'?"),
    ],
)
def test_a_wrong_value_is_refused(said, message, fedlsg):
    status, _, err = fedlsg("run", *SHORT, "-c", said)
    assert (status, err) == (1, f"fedlsg: error: {message}\n")


OPTIONS = [
    "--rounds",
    "2",
    "--clients",
    "2",
    "--noise-multiplier",
    "2",
    "--reproducible",
    "--record-updates",
]


def test_a_new_codec_runs_end_to_end(tmp_path):
    """Both ways, from the command line; what arrives is a multiple of the step that was given."""
    (tmp_path / "codecs").mkdir()
    run = Run(tmp_path / "run")
    options = [
        "--codec",
        "coarse",
        "-c",
        "coarse_step=0.5",
        "--downlink",
        "sparse",
        "-c",
        "downlink-codec=coarse",
    ]
    with planted(tmp_path / "codecs"):
        cli(
            ["run", "--engine", "local", "--out", str(run.path), *OPTIONS, *options],
            standalone_mode=False,
        )
        assert uplink_codec(run.directory.read_config()).summary() == {"coarse_step": 0.5}
    summary = json.loads(run.directory.summary.read_text())
    assert summary["codec"] == {"name": "coarse", "indices": "derived", "coarse_step": 0.5}
    assert summary["downlink"]["codec"] == "coarse"
    assert summary["downlink"]["coarse_step"] == 0.5
    assert [row.rejected for row in run.rows] == ["", ""]
    assert len(run.payloads) == 4
    for payload in run.payloads.values():
        assert payload[5] == 100
        steps = torch.frombuffer(bytearray(payload[COMPACT.size : -16]), dtype=torch.int16)
        assert steps.abs().max() < 100  # the noise has a deviation of 4 steps
        assert steps.any()
