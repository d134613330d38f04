"""Under Flower's simulation, a client from which the GPU is hidden says which option gives it."""

import logging

import pytest
import torch

from fedlsg.simulations.client import process_state, virtual
from tests.simulations.support.runs import plan_at


@pytest.mark.parametrize(
    ("given", "visible", "there", "said"),
    [
        ({}, "", True, True),
        ({"device": "cpu"}, "", True, False),
        ({"engine": "ray"}, "", True, False),
        ({}, "0", True, False),
        ({}, "", False, False),
    ],
)
def test_a_hidden_gpu_is_named(given, visible, there, said, tmp_path, monkeypatch, caplog):
    settings = plan_at(tmp_path / "run", **{"engine": "auto", "device": "auto", **given})[
        0
    ].settings
    monkeypatch.setattr(virtual, "in_simulation", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(
        virtual.Path, "glob", lambda path, pattern: iter([path / "nvidia0"] if there else [])
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(process_state, "prepare", _end)
    with caplog.at_level(logging.WARNING), pytest.raises(StopIteration):
        process_state.process(settings)
    assert ("client-resources-num-gpus=0.25" in caplog.text) is said


def _end(settings):
    raise StopIteration
