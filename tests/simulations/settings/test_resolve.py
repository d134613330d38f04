"""Codecs through settings and a whole run: a new one with a setting of its own is one file, and nothing else."""

import json

import torch

from fedlsg.payload.layout import COMPACT
from simulations.cli.app import app as cli
from simulations.settings.resolve import uplink_codec
from tests.fedlsg.support.coarse_codec import planted
from tests.simulations.support.runs import Run

OPTIONS = ["--rounds", "2", "--clients", "2", "--noise-multiplier", "2", "--reproducible", "--record-updates"]


def test_a_new_codec_runs_end_to_end(tmp_path):
    """Both ways, from the command line; what arrives is a multiple of the step that was given."""
    (tmp_path / "codecs").mkdir()
    run = Run(tmp_path / "run")
    options = ["--codec", "coarse", "-c", "coarse_step=0.5", "--downlink", "sparse", "-c", "downlink-codec=coarse"]
    with planted(tmp_path / "codecs"):
        cli(["run", "--engine", "local", "--out", str(run.path), *OPTIONS, *options], standalone_mode=False)
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
