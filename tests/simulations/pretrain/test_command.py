"""``fedlsg pretrain`` writes weights that depend on its arguments alone, reads no training row, and leaves no ruins."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from simulations import workloads
from simulations.pretrain import command
from simulations.pretrain.command import pretrain_command
from simulations.pretrain.tasks import TASKS
from simulations.pretrain.train import Schedule, pretrain
from simulations.rundir.model_files import read_model
from tests.simulations.support.own import CLASSES, workload

QUICK = Schedule(steps=4, batch=16)


def pretrained(out: Path | str, **changes) -> Path | str:
    """A folder of a quick training of the digits' small network."""
    given = {"model": "conv", "source": "leaves", "task": "contrastive", "images": 40, "schedule": QUICK, "seed": 0}
    more = {"threads": 1, "device": "cpu", "data_dir": None, "out": str(out)}
    pretrain_command(changes.pop("workload", "digits"), Console(quiet=True), **{**given, **more, **changes})
    return out


def test_the_folder_has_every_weight_but_the_classifier_and_says_what_made_it(tmp_path):
    tensors, facts = read_model(pretrained(tmp_path / "new" / "pre"))
    model = workloads.build_model(workloads.load("digits"), "conv", 0)
    body = {name for name in model.state_dict() if not name.startswith("classifier")}
    assert tensors.keys() == body
    assert all(not torch.equal(tensors[name], model.state_dict()[name]) for name in body if "weight" in name)
    assert facts["pretrained_on"] == {
        "source": "leaves", "task": "contrastive", "images": 40, "steps": 4, "batch": 16, "learning_rate": 1e-3,
    }  # fmt: skip
    assert (facts["workload"], facts["model"], facts["seed"]) == ("digits", "conv", 0)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["pre"]


def test_without_out_the_folder_has_the_name_of_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pretrained("", model=None)
    assert read_model(tmp_path / "pretrained" / "digits-mlp")[1]["model"] == "mlp"


@pytest.mark.parametrize("task", TASKS)
def test_equal_arguments_give_equal_bytes_and_other_seeds_do_not(task, tmp_path):
    files = [
        pretrained(tmp_path / str(i), task=task, seed=seed) / "model.safetensors" for i, seed in enumerate((3, 3, 4))
    ]
    first, again, other = (file.read_bytes() for file in files)
    assert first == again != other


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_falls(task, tmp_path):
    out = pretrained(tmp_path / "pre", task=task, images=60, schedule=Schedule(steps=60, batch=30, learning_rate=5e-3))
    loss = json.loads((out / "config.json").read_text())["loss"]
    assert loss["last"] < 0.95 * loss["first"]


def test_no_training_row_is_opened_but_to_compare_public_data(tmp_path, monkeypatch):
    asked = []
    load = workloads.load
    monkeypatch.setattr(
        command.workloads, "load", lambda name, **how: asked.append(how["public_only"]) or load(name, **how)
    )
    pretrained(tmp_path / "leaves")
    with pytest.raises(ValueError, match="data:digits is refused"):
        pretrained(tmp_path / "data", source="data:digits")
    assert asked == [True, False]


def test_an_interrupt_or_a_wrong_argument_leaves_nothing(tmp_path, monkeypatch):
    def stop(*given, **how):
        raise KeyboardInterrupt

    for changes, error, text in (
        ({"task": "rotation"}, ValueError, "task"),
        ({"schedule": Schedule(steps=4, batch=41)}, ValueError, "expected 2 <= batch=41 <= 40 images"),
        ({"schedule": Schedule(steps=9, batch=16, learning_rate=1e30)}, ValueError, "is not finite"),
        ({"source": "tokens"}, ValueError, "no probe source 'tokens'"),
        ({"threads": 0}, ValueError, "expected --threads 0 >= 1"),
        ({"schedule": Schedule(steps=4, batch=16, learning_rate=-1.0)}, ValueError, "0 < --learning-rate -1.0"),
    ):
        with pytest.raises(error, match=text):
            pretrained(tmp_path / "pre", **changes)
    monkeypatch.setattr(command, "write_model", stop)
    with pytest.raises(KeyboardInterrupt):
        pretrained(tmp_path / "pre")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "pretrain", lambda *given, **how: pytest.fail("it was trained"))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot write to .*pre: Not a directory; choose another --out"):
        pretrained(tmp_path / "file" / "new" / "pre")
    assert [place.name for place in tmp_path.iterdir()] == ["file"]


def test_the_command_that_is_printed_can_be_pasted(tmp_path, capsys):
    console = Console(width=40)
    pretrain_command(
        "digits", console, model="conv", source="leaves", task="contrastive", images=40, schedule=QUICK, seed=0,
        threads=1, device="cpu", data_dir=None, out=str(tmp_path / "a folder"),
    )  # fmt: skip
    printed = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(printed.partition(": ")[2])[-1] == f"pretrained={tmp_path / 'a folder'}"


def test_an_existing_folder_is_kept(tmp_path):
    pretrained(tmp_path / "pre")
    before = (tmp_path / "pre" / "config.json").read_bytes()
    with pytest.raises(ValueError, match="nothing is overwritten"):
        pretrained(tmp_path / "pre", seed=1)
    assert (tmp_path / "pre" / "config.json").read_bytes() == before


def test_the_classifier_is_left_as_it_is():
    model = workloads.build_model(workloads.load("digits"), "conv", 0)
    layer, before = model.classifier, model.classifier.weight.detach().clone()
    state = torch.get_rng_state()
    pretrain(model, "classifier", torch.randn(20, 1, 8, 8), TASKS["contrastive"], QUICK, seed=0, report=lambda *_: None)
    assert model.classifier is layer
    assert torch.equal(layer.weight, before)
    assert len(state) == len(torch.get_rng_state())


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(300, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def test_a_workload_of_a_users_own_is_pretrained(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (12, 3, 10, 10), dtype=np.uint8)
    data = (array, np.arange(12) % CLASSES)
    workloads.give("mine", workload(model=network, train=data, test=data, transform=lambda rows: rows / 255))
    try:
        out = pretrained(tmp_path / "pre", workload="mine", model=None)
        assert set(load_file(out / "model.safetensors")) == {"1.weight", "1.bias"}
    finally:
        workloads._GIVEN.pop("mine")


def test_vectors_are_refused(tmp_path):
    workloads.give("vectors", workload(probe=lambda count, generator: torch.randn(count, 8, generator=generator)))
    try:
        with pytest.raises(ValueError, match="pretraining needs images"):
            pretrained(tmp_path / "pre", workload="vectors", model=None, source="auto")
    finally:
        workloads._GIVEN.pop("vectors")
