"""The setting ``device``: each process resolves auto for itself; what a run used is recorded."""

import pytest
import torch

from simulations.plan.continuity import check_unchanged, fingerprint, keep_data_digest
from simulations.plan.plan import make_plan
from simulations.rundir.rundir import RunDir
from simulations.settings.automatic import device_of
from simulations.settings.settings import from_mapping
from tests.simulations.support.runs import SMALL


def with_cuda(patch: pytest.MonkeyPatch, there: bool) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: there)


@pytest.mark.parametrize(
    ("wanted", "there", "found"),
    [
        ("auto", True, "cuda"),
        ("auto", False, "cpu"),
        ("cpu", True, "cpu"),
        ("cpu", False, "cpu"),
        ("cuda", True, "cuda"),
    ],
)
def test_auto_is_cuda_where_torch_finds_it(monkeypatch, wanted, there, found):
    with_cuda(monkeypatch, there)
    assert device_of(wanted) == found


def test_cuda_that_is_not_there_is_refused(monkeypatch):
    with_cuda(monkeypatch, False)
    with pytest.raises(ValueError, match="finds no CUDA device here; use --device cpu, or auto"):
        device_of("cuda")


def test_a_run_that_is_resumed_on_another_device_says_so(tmp_path, monkeypatch):
    with_cuda(monkeypatch, False)
    plan, run = make_plan(from_mapping(SMALL)), RunDir(tmp_path)
    keep_data_digest(plan, run)
    saved = fingerprint(plan)
    assert check_unchanged(saved, plan, run) == []
    saved["settings"]["device"] = "cuda"
    assert check_unchanged(saved, plan, run) == ["device = cpu (was cuda)"]
