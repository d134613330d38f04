"""Commands on workloads that are no classification of images in [0, 1]: the workload's own loss,
targets and range.
"""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import fedlsg
from fedlsg.attacks.inversion.linear import labels_of
from fedlsg.attacks.inversion.matching import ATTACKS, match
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.observation import DoesNotApply, Knowledge, ThreatModel
from fedlsg.attacks.replay import unexplained
from fedlsg.simulations.attacks import kind_of
from fedlsg.simulations.attacks.images_score import public_images
from fedlsg.simulations.attacks.membership.shadows import accuracy_of, confidences, is_cross_entropy
from fedlsg.simulations.attacks.observations import open_record
from fedlsg.simulations.attacks.target import truth_of
from fedlsg.simulations.inspection import batch_gradient, subject_of_settings
from fedlsg.simulations.inspection.measure import own_clip
from fedlsg.simulations.planning.faults import row_faults
from fedlsg.user_code import loading
from tests.simulations.support import own_tasks
from tests.simulations.support.own import fresh, load, quick

FILE = Path(own_tasks.__file__)


@pytest.fixture(autouse=True)
def allowed():
    """Names of files may run code, and nothing of it is known afterwards."""
    with fresh(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "is_permitted", lambda name: True)
        yield


def subject(task: str):
    return subject_of_settings({"workload": f"{FILE}:{task}", "method": "dpsgd", "engine": "local"})


def test_inspection_uses_the_workloads_loss():
    plain, scaled = subject("classes"), subject("scaled")
    rows = plain.rows(20)
    for name, dW in batch_gradient(plain, rows).items():
        assert_close(batch_gradient(scaled, rows)[name], 100 * dW)
    norms = [own_clip(one, one.frame, rows).clipping.norms[0.5] for one in (plain, scaled)]
    assert norms[1] == pytest.approx(100 * norms[0], rel=1e-4)


@pytest.mark.parametrize("task", ["regression", "labels", "sequence"])
def test_inspection_of_other_targets_is_the_gradient_of_their_loss(task):
    found = subject(task)
    rows, workload = found.rows(12), found.base.workload
    inputs, targets = workload.train.batch(rows)
    outputs = found.model(**inputs) if isinstance(inputs, dict) else found.model(inputs)
    workload.loss(outputs, targets).mean().backward()
    gradients = batch_gradient(found, rows)
    for name, p in found.model.named_parameters():
        assert_close(gradients[name], p.grad, rtol=1e-4, atol=1e-6)
    assert own_clip(found, found.frame, rows).clipping.norms[1.0] > 0


def test_the_range_of_pixels_is_that_of_the_data():
    prior = public_images(load(own_tasks.images())).prior
    assert (prior.low, prior.high) == ((-1.0,), (1.0,))
    # a range of 0 to the largest stored value would hide half of each image
    assert prior.span == 2.0


def test_membership_reads_the_loss_of_what_are_no_classes():
    regression, labels = load(own_tasks.regression()), load(own_tasks.labels())
    for workload in (regression, labels):
        model = own_tasks.net()
        inputs, targets = workload.train.batch(torch.arange(10))
        found = confidences(model, workload, workload.train, torch.arange(10), "cpu")
        assert_close(
            torch.from_numpy(found), -workload.loss(model(inputs), targets).detach().double()
        )
        # NaN: there is none
        assert accuracy_of(model, workload, "cpu") != accuracy_of(model, workload, "cpu")
    kinds = {
        task: is_cross_entropy(load(getattr(own_tasks, task)()))
        for task in ("classes", "scaled", "labels")
    }
    assert kinds == {"classes": True, "scaled": True, "labels": False}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recorded run of a task, without noise."""

    def of(task: str):
        out = tmp_path_factory.mktemp(task) / "run"
        quick(
            out,
            workload=getattr(own_tasks, task),
            method="dpsgd",
            mechanism="clip-only",
            noise_multiplier=None,
            record_updates=True,
        )
        return open_record(str(out), ThreatModel())

    return of


def test_attacks_replay_the_workloads_loss_and_name_what_they_cannot_read(recorded):
    record = recorded("regression")
    seen = next(one for one in record.pick(1, ThreatModel()) if bool(one.values.any()))
    truth = truth_of(record, seen)
    granted = truth.grant(ThreatModel())
    assert granted.labels.shape == truth.labels.shape
    # whole rows
    assert sorted(map(tuple, granted.labels.tolist())) == sorted(map(tuple, truth.labels.tolist()))
    with pytest.raises(DoesNotApply, match="no classes"):
        labels_of(seen, None, Knowledge(examples=1))
    # the client's own loss explains it
    assert unexplained(seen, truth.inputs, truth.labels, scaled=False) < 1e-9
    # negative control
    assert unexplained(seen, truth.inputs + 1, truth.labels, scaled=False) > 0.01
    prior = Prior(shape=(8,), low=-5.0, high=5.0)
    with pytest.raises(DoesNotApply, match="grant them"):
        match(
            seen, Knowledge(examples=1), prior, attack=ATTACKS["dlg"], generator=torch.Generator()
        )


def test_tokens_of_a_users_own_are_refused_with_what_to_do(recorded):
    with pytest.raises(
        ValueError, match=r"tokens is of your own, and names no tokenizer.*hf-text.*--membership"
    ):
        kind_of(recorded("tokens"))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "labels", "scaled", "sequence", "images"])
def test_every_command_takes_a_task_or_refuses_it_by_name(task, fedlsg, tmp_path):
    name, run = f"{FILE}:{task}", str(tmp_path / "run")
    status, _, err = fedlsg(
        "run",
        name,
        "--engine",
        "local",
        "--record-updates",
        "--out",
        run,
        "-c",
        "quiet=true",
        "-c",
        "reproducible=true",
    )
    assert status == 0, err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["accuracy"] is None) == (task in ("regression", "labels", "sequence"))
    for command in (
        ["report", run],
        ["inspect", run, "--examples", "8"],
        ["audit", run, "--canaries", "20"],
        ["export", run],
        ["partition", name],
        ["attack", "--membership", run, "--shadows", "6", "--out", str(tmp_path / "membership")],
        [
            "compare",
            name,
            "--methods",
            "dpsgd",
            "--yes",
            "--out",
            str(tmp_path / "compare"),
            "-c",
            "engine=local",
        ],
    ):
        status, _, err = fedlsg(*command)
        assert status == 0, (command[0], err)
    status, _, err = fedlsg("attack", run, "--seconds", "0.5", "--images", "1")
    assert (status, "holds no images" in err) == ((0, False) if task == "images" else (1, True)), (
        err
    )


class Keeps(torch.nn.Module):
    """A model that keeps the largest number that it has seen, where no dict of it is."""

    largest = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Keeps.largest = max(Keeps.largest, float(x.detach().abs().max()))
        return self.last(x)


@pytest.mark.parametrize("forgetful", [True, False], ids=["as it is", "negative control"])
def test_the_rows_that_a_run_looks_at_leave_no_trace(forgetful, tmp_path, monkeypatch):
    if not forgetful:
        monkeypatch.setattr(row_faults, "restored", lambda *objects: nullcontext())
    monkeypatch.setattr(Keeps, "largest", 0.0)
    x, y = torch.randn(20, 4), torch.randint(0, 3, (20,))
    x[-1] = 1e6
    fedlsg.simulate(
        model=Keeps,
        train=(x, y),
        test=(torch.randn(5, 4), torch.arange(5) % 3),
        loss=torch.nn.CrossEntropyLoss(),
        rounds=1,
        clients=1,
        method="dpsgd",
        epsilon=8.0,
        engine="local",
        out=tmp_path / "run",
    )
    assert (Keeps.largest < 1e6) is forgetful
