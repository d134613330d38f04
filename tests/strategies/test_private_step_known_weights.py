"""Weights that an earlier process trained: a private step recognises them, and writes its own."""

import copy
import gc
import os
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from fedlsg import PrivateStep
from fedlsg.privacy import trained_weights
from fedlsg.privacy.known_weights import LEDGER, STEP, WEIGHTS
from fedlsg.user_lists import Draft, UserList
from tests.places import REPOSITORY

BEGIN = """
import sys, torch
from pathlib import Path
from torch import nn
import fedlsg
from fedlsg import PrivateStep

folder = Path(sys.argv[1])
torch.manual_seed(0)
x, y = torch.randn(60, 8), torch.arange(60) % 3
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

def step_of(net, **given):
    terms = {"sample_rate": 0.2, "steps": 4, "epsilon": 8.0, "delta": 1e-3, **given}
    return PrivateStep(net, nn.CrossEntropyLoss(), num_examples=60, **terms)

def trained(**given):
    step = step_of(net, **given)
    batches = step.batches((x, y))
    for _ in range(2):
        step.step(batches)
    return step
"""
SAVES = {
    "the model alone": "trained(); torch.save(net.state_dict(), folder / 'w.pt')",
    "with its state": "step = trained(); torch.save((net.state_dict(), step.state_dict()), "
    "folder / 'all.pt'); torch.save(net.state_dict(), folder / 'w.pt')",
    "the state, then it is trained on": "step = trained(); step.state_dict(); "
    "torch.save(net.state_dict(), folder / 'w.pt'); step.step(step.batches((x, y)))",
    "the average": "step = trained()\nwith step.evaluated() as model:\n"
    "    torch.save({n: v.clone() for n, v in model.state_dict().items()}, folder / 'w.pt')",
    "a process that fails": "trained(); torch.save(net.state_dict(), folder / 'w.pt'); 1 / 0",
    "a run": "from safetensors.torch import load_file\n"
    "found = fedlsg.simulate(model=lambda: net, train=(x, y), test=(x[:9] + 1, y[:9]), "
    "loss=nn.CrossEntropyLoss(), rounds=2, clients=2, engine='local', quiet=True, "
    "out=folder / 'run')\n"
    "torch.save(load_file(folder / 'run' / 'model.safetensors'), folder / 'w.pt')",
}
LOAD = "net.load_state_dict(torch.load(folder / 'w.pt'))\n"
REFUSED = "was trained by an earlier private step or run"


def in_a_process(folder, code, *, fails=False):
    """What a new process that runs this code printed last."""
    ended = subprocess.run(
        [sys.executable, "-c", f"{BEGIN}\n{code}", str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode != 0) == fails, ended.stderr
    return ended.stderr if fails else ended.stdout


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A user who has trained nothing yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


LIVES = "step = trained()\nwith step.evaluated():\n    pass\n"
LIVES += "torch.save(net.state_dict(), folder / 'w.pt')\nprint('saved', flush=True)\ninput()"
NO_DRAFTS = "import fedlsg.user_lists\nfedlsg.user_lists.Draft.write = lambda *_: None\n"


@pytest.mark.slow
@pytest.mark.parametrize(("before", "refused"), [("", True), (NO_DRAFTS, False)])
def test_what_a_process_trained_is_known_while_it_lives_and_if_it_is_killed(
    before, refused, tmp_path
):
    """As a notebook does, from which weights are saved. The second case is a negative control."""
    with subprocess.Popen(
        [sys.executable, "-c", f"{BEGIN}\n{before}{LIVES}", str(tmp_path)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as lives:
        assert lives.stdout is not None
        assert lives.stdout.readline() == "saved\n"
        assert (REFUSED in in_a_process(tmp_path, f"{LOAD}step_of(net)", fails=refused)) == refused
        lives.kill()
    assert (REFUSED in in_a_process(tmp_path, f"{LOAD}step_of(net)", fails=refused)) == refused


def test_drafts_end_with_their_step_and_old_ones_move_into_the_list(tmp_path):
    draft, other = Draft(WEIGHTS), Draft(WEIGHTS)
    draft.write([("aa" * 8, STEP), ("bb" * 8, STEP)])
    draft.write([("cc" * 8, STEP)])
    other.write([("dd" * 8, STEP)])
    assert sorted(WEIGHTS.entries()) == [("cc" * 8, STEP), ("dd" * 8, STEP)]
    draft.end()
    assert WEIGHTS.entries() == [("dd" * 8, STEP)]
    (left,) = WEIGHTS.drafts.iterdir()
    assert left.stat().st_mode & 0o077 == 0
    os.utime(left, (0, 0))
    WEIGHTS.take_in_drafts()
    assert not [*WEIGHTS.drafts.iterdir()]
    assert WEIGHTS.entries() == [("dd" * 8, STEP)]
    other.write([("ee" * 8, STEP)])  # it was not killed
    assert WEIGHTS.entries() == [("dd" * 8, STEP), ("ee" * 8, STEP)]
    (left,) = WEIGHTS.drafts.iterdir()
    left.write_bytes(left.read_bytes()[3:])  # read while it is written
    assert WEIGHTS.entries() == [("dd" * 8, STEP)]


@pytest.mark.slow
@pytest.mark.parametrize("case", SAVES)
def test_a_later_process_refuses_what_an_earlier_one_trained(case, tmp_path):
    in_a_process(tmp_path, SAVES[case], fails=case == "a process that fails")
    text = in_a_process(tmp_path, f"{LOAD}step_of(net)", fails=True)
    assert REFUSED in text
    assert "ledger=PATH" in text
    assert "fresh_data=True" in text
    in_a_process(
        tmp_path, f"{LOAD}step_of(net, fresh_data=True).step(lambda row: (x[row], y[row]))"
    )


@pytest.mark.slow
def test_weights_that_change_after_the_start_are_refused_before_a_charge(tmp_path):
    in_a_process(tmp_path, SAVES["the model alone"])
    code = "step = step_of(net, ledger=folder / 'new.jsonl')\n"
    # its own ledger does not count the step of before, which had none
    text = in_a_process(tmp_path, f"{code}{LOAD}step.step(step.batches((x, y)))", fails=True)
    assert REFUSED in text
    assert not (tmp_path / "new.jsonl").exists() or not (tmp_path / "new.jsonl").read_text()


@pytest.mark.slow
def test_a_run_refuses_what_a_private_step_of_an_earlier_process_trained(tmp_path):
    in_a_process(tmp_path, SAVES["with its state"])
    code = SAVES["a run"].partition("torch.save(load_file")[0]
    assert REFUSED in in_a_process(tmp_path, LOAD + code, fails=True)


@pytest.mark.slow
def test_one_ledger_file_goes_on_in_a_later_process(tmp_path):
    ledger = "ledger=folder / 'own.jsonl'"
    in_a_process(
        tmp_path,
        f"step = trained({ledger}); torch.save((net.state_dict(), step.state_dict()), "
        "folder / 'all.pt'); torch.save(net.state_dict(), folder / 'w.pt')",
    )
    printed = in_a_process(
        tmp_path,
        f"step = step_of(net, {ledger})\n{LOAD}"
        "step.load_state_dict(torch.load(folder / 'all.pt')[1])\n"
        "step.step(step.batches((x, y))); print(step.steps_taken)",
    )
    assert printed.split() == ["3"]
    assert all(of.startswith(LEDGER) for _, of in WEIGHTS.entries())


@pytest.mark.slow
def test_new_weights_of_the_same_seed_are_no_false_alarm(tmp_path):
    """The same script again, in a new process: its weights are trained by nobody."""
    for _ in range(2):
        in_a_process(tmp_path, SAVES["with its state"])
    assert {of for _, of in WEIGHTS.entries()} == {STEP}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "linear-probe", "sparse-dpsgd"])
def test_what_a_method_does_not_move_is_nobodys(method, tmp_path):
    rank = ", rank=2" if method == "lora" else ""
    for _ in range(2):
        in_a_process(tmp_path, f"trained(method={method!r}{rank}).state_dict()")


@pytest.mark.slow
def test_a_planted_mistake_is_found(tmp_path):
    """The negative control: without the list the later process trains on."""
    in_a_process(tmp_path, SAVES["the model alone"])
    WEIGHTS.place.unlink()
    in_a_process(tmp_path, f"{LOAD}step_of(net)")


def small_step(net, **given):
    terms = {"sample_rate": 0.2, "steps": 8, "noise_multiplier": 1.0, "delta": 1e-3, **given}
    return PrivateStep(net, nn.CrossEntropyLoss(), num_examples=60, **terms)


def rows():
    return torch.randn(60, 8), torch.arange(60) % 3


@pytest.mark.parametrize("forgets", [True, False], ids=["another process", "its list is lost"])
def test_the_list_is_what_a_later_process_knows(forgets, monkeypatch):
    """The same without a process: what this one remembers is taken away. And the negative control:
    so is the list.
    """
    net = nn.Linear(8, 3)
    step = small_step(net)
    step.step(step.batches(rows()))
    step.state_dict()
    monkeypatch.setattr(trained_weights, "_DIGESTS", {})
    later = copy.deepcopy(net)
    if forgets:
        with pytest.raises(ValueError, match=REFUSED):
            small_step(later)
    else:
        WEIGHTS.place.unlink()
        for draft in WEIGHTS.drafts.iterdir():
            draft.unlink()
        small_step(later)


def sparsely_trained(**given):
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    before = copy.deepcopy(net)
    step = small_step(net, **given)
    step.step(step.batches(rows()))
    step.state_dict()
    moved = [
        int((p != q).sum()) for p, q in zip(net.parameters(), before.parameters(), strict=True)
    ]
    return net, before, sum(moved)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sparsity", [0.99, 0.999])
def test_a_very_sparse_method_is_recognised(sparsity, seed, monkeypatch):
    """Some of 4,935 numbers move. It was accepted again, at epsilon 0, and so was a copy."""
    net, before, moved = sparsely_trained(method="rs", steps=1, sparsity=sparsity, seed=seed)
    assert 0 < moved < 120
    for again in (net, copy.deepcopy(net)):
        with pytest.raises(ValueError, match=REFUSED):
            small_step(again)
    small_step(before)  # the weights of the start are nobody's
    monkeypatch.setattr(trained_weights, "_DIGESTS", {})  # as in a later process
    with pytest.raises(ValueError, match=REFUSED):
        small_step(copy.deepcopy(net))
    small_step(copy.deepcopy(before))


def test_a_step_without_an_update_is_no_false_alarm():
    net, before, moved = sparsely_trained(
        method="dpsgd", optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0)
    )
    assert moved == 0
    for again in (net, before, copy.deepcopy(net)):
        small_step(again)


def test_a_step_that_is_interrupted_after_its_update_has_trained():
    net = nn.Linear(8, 3)

    class Interrupted(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            raise KeyboardInterrupt

    step = small_step(net, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    step.step(batches := step.batches(rows()))
    step.optimizer.__class__ = Interrupted
    with pytest.raises(KeyboardInterrupt):
        step.step(batches)
    with pytest.raises(ValueError, match=REFUSED):
        small_step(copy.deepcopy(net))


def test_the_list_costs_a_step_nothing(monkeypatch):
    """It is written with the state, at the end, and once a minute, and not in each step."""
    written = []
    gc.collect()  # steps of tests before write at their end
    monkeypatch.setattr(UserList, "remember", lambda own, digests: written.append([*digests]))
    step = small_step(nn.Linear(8, 3))
    batches = step.batches(rows())
    for _ in range(5):
        step.step(batches)
    assert written == []
    step.state_dict()
    assert len(written) == 1
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 3600)
    step.step(batches)
    assert len(written) == 2
