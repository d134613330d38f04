"""Weights in the files of a run: later processes of the same user know each of them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fedlsg
from fedlsg import PrivateStep
from fedlsg.gradients import trainable
from fedlsg.privacy import trained_weights
from fedlsg.privacy.known_weights import WEIGHTS
from fedlsg.simulations.planning.earlier_runs import weights_of_run
from fedlsg.simulations.planning.earlier_runs.weights_of_run import READERS, weights_in
from fedlsg.simulations.storage.declared import RUN
from fedlsg.simulations.storage.run_directory import RunDir
from tests.places import REPOSITORY

REFUSED = "was trained by an earlier private step or run"
KINDS = {declared.pattern for declared in RUN if declared.weights is not None}
ROWS = torch.randn(100, 10, generator=torch.Generator().manual_seed(1))
TARGETS = torch.arange(100) % 3


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3))


def run_of(folder, **given):
    """A run that keeps its best model, and what it recorded."""
    return fedlsg.simulate(
        model=net,
        train=(ROWS, TARGETS),
        test=(ROWS[:20] + 1, TARGETS[:20]),
        loss=nn.CrossEntropyLoss(),
        **{
            "method": "dpsgd",
            "clients": 2,
            "rounds": 4,
            "learning_rate": 2.0,
            "sample_rate": 0.5,
            "epsilon": 8.0,
            "delta": 1e-3,
            "engine": "local",
            "callbacks": "best-model",
            "record_updates": True,
            **given,
        },
        quiet=True,
        out=folder,
    )


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A user who has trained nothing yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def another_process(monkeypatch):
    """What this process remembers is taken away; the list stays."""
    monkeypatch.setattr(trained_weights, "_DIGESTS", {})


def accepts(tensors):
    """Whether a step goes on from weights, which are of the model of ``net`` or of a part."""
    model = net()
    model.load_state_dict(tensors, strict=False)
    try:
        PrivateStep(
            model,
            nn.CrossEntropyLoss(),
            num_examples=100,
            sample_rate=0.2,
            steps=5,
            noise_multiplier=1.0,
            delta=1e-3,
        )
    except ValueError as error:
        if REFUSED not in str(error):
            raise
        return False
    return True


def test_every_declared_kind_has_a_reader_and_no_file_of_weights_is_left_out():
    assert {declared.weights for declared in RUN} == {None, *READERS}
    endings = (".safetensors", ".pt", "weights.npy*")
    named = {declared.pattern for declared in RUN if declared.pattern.endswith(endings)}
    # a damaged checkpoint cannot be read
    assert named - {"checkpoint/damaged.pt"} == KINDS - {"export/**"}


@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_weights_in_each_file_are_known_to_a_later_process(ema, tmp_path, monkeypatch):
    second = "fedlsg.simulations.server.best_round.Best.offer"
    monkeypatch.setattr(second, lambda own, row: row["round"] == 2)
    run = RunDir(Path(run_of(tmp_path / "run", ema=ema).directory))
    found = [
        {name: tensor.clone() for name, tensor in tensors.items()}
        for tensors in weights_in(run, trainable(net()))
    ]
    start, *rest = [
        each for each in found if all(map(torch.equal, each.values(), net().parameters()))
    ]
    assert rest == []  # the recorded weights of round 1 alone
    # five rounds are recorded; two checkpoints, with two averages; the best and the last model
    assert len(found) == 5 + 2 * (1 + bool(ema)) + 2
    best, last = found[0], found[-1]
    assert not torch.equal(best["0.weight"], last["0.weight"])
    another_process(monkeypatch)
    assert [accepts(each) for each in found if each is not start] == [False] * (len(found) - 1)
    for half in (torch.float16, torch.bfloat16):
        rounded = [{name: t.to(half) for name, t in each.items()} for each in (last, start)]
        assert [*map(accepts, rounded)] == [False, True]
    assert accepts(start)
    assert accepts(net().state_dict())
    # the negative control: without the list they are nobody's
    WEIGHTS.place.unlink()
    another_process(monkeypatch)
    assert all(accepts(each) for each in found)


def test_a_run_that_fails_leaves_its_checkpoints_known(tmp_path, monkeypatch):
    def broken(self, row):
        if row["round"] == 3:
            raise RuntimeError("planted")

    monkeypatch.setattr("fedlsg.simulations.server.best_round.BestModel.on_round", broken)
    with pytest.raises(RuntimeError, match="planted"):
        run_of(tmp_path / "run")
    found = list(weights_in(RunDir(tmp_path / "run"), trainable(net())))
    another_process(monkeypatch)
    assert sum(accepts(each) for each in found) == 1  # those of the start


def test_a_run_that_is_killed_has_noted_its_weights_now_and_then(tmp_path, monkeypatch):
    """At least once a minute, after a round; what was replaced since then leaves the list."""
    monkeypatch.setattr(weights_of_run, "SECONDS", 0.0)
    monkeypatch.setattr(weights_of_run, "RARELY", 0)
    listed = []

    def killed(self, row):
        if row["round"] == 4:
            listed.append(WEIGHTS.place.read_bytes())
            raise RuntimeError("planted")

    monkeypatch.setattr("fedlsg.simulations.server.best_round.BestModel.on_round", killed)
    with pytest.raises(RuntimeError, match="planted"):
        run_of(tmp_path / "run", record_updates=False)
    WEIGHTS.place.write_bytes(listed[0])  # the end of the run did not come
    another_process(monkeypatch)
    run, start = RunDir(tmp_path / "run"), trainable(net())
    before, last = (
        next(iter(READERS["checkpoint"](path, start))) for path in (run.previous, run.checkpoint)
    )
    assert [accepts(before), accepts(last)] == [False, True]
    # of two checkpoints, and no longer of the first rounds; one of its matrices is large enough for
    # digests in half precision
    assert len(WEIGHTS.entries()) == 2 * (3 + 2)


EXPORTS = """
import sys
from pathlib import Path
from safetensors.torch import load_file
sys.path.insert(0, "")
from tests.simulations.run.test_known_files import accepts, net
folder = Path(sys.argv[1])
for path in sorted(folder.glob("**/*.safetensors")):
    tensors = load_file(path)
    part = {"0.weight": tensors["0.weight"]} if "0.weight" in tensors else tensors
    print(path.relative_to(folder), accepts(part))
print("start", accepts(net().state_dict()))
"""


def in_a_process(*command):
    ended = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_what_export_writes_is_known_to_a_later_process(tmp_path):
    """A model, merged factors, and the weights of an unfinished run, each through the command."""
    make = "from tests.simulations.run.test_known_files import run_of; import sys; "
    folder = tmp_path / "runs"
    for name, given in (("plain", ""), ("lora", ", method='lora', rank=2"), ("cut", "")):
        in_a_process("-c", f"{make}run_of({str(folder / name)!r}{given})")
    for path in ("summary.json", "model.safetensors", "config.json", "best/model.safetensors"):
        (folder / "cut" / path).unlink()
    program = "from fedlsg.simulations.cli.start import main; main()"
    in_a_process("-c", program, "export", folder / "plain")
    in_a_process("-c", program, "export", folder / "lora", "--merge-lora")
    printed = in_a_process("-c", EXPORTS, folder).splitlines()
    assert printed.pop() == "start True"
    assert [line.split()[0] for line in printed] == [
        "lora/best/model.safetensors",
        "lora/export/model.safetensors",
        "lora/model.safetensors",
        "plain/best/model.safetensors",
        "plain/export/model.safetensors",
        "plain/model.safetensors",
    ]
    assert {line.split()[1] for line in printed} == {"False"}
