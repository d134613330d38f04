"""The documented resume: the same call again, with ``resume=True``, whatever it leaves to a rule."""

import re
import signal
import subprocess
import sys
import time

import pytest
import torch

import fedlsg
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.own import TEST, TRAIN, build, refused

SLOW = pytest.mark.slow


class StoppedError(Exception):
    """What a callback raises."""


def call(out, **given):
    """The call of the documentation: no method, no rounds, no rates."""
    own = {"model": build, "train": TRAIN, "test": TEST, "loss": torch.nn.CrossEntropyLoss()}
    own = {} if "workload" in given else own
    plain = {"out": out, "clients": 2, "quiet": True, "engine": "local"}
    return fedlsg.simulate(**{**own, **plain, **given})


def stop_after_one(row):
    raise StoppedError


@pytest.mark.parametrize(
    "given",
    [
        {"rounds": 3},
        pytest.param({}, marks=SLOW),
        pytest.param({"epochs": 2}, marks=SLOW),
        pytest.param(
            {"rounds": "auto", "learning_rate": "auto", "method": "auto", "engine": "auto"},
            marks=SLOW,
        ),
        pytest.param({"isolation": "auto", "device": "auto", "rounds": 2}, marks=SLOW),
        pytest.param({"optimizer": "adamw", "rounds": 2}, marks=SLOW),
        pytest.param({"optimizer": "SGD", "rounds": 2}, marks=SLOW),
        pytest.param({"holdout": 0.2, "test": None, "rounds": 2}, marks=SLOW),
        pytest.param({"epsilon": {0: 2.0, 1: 4.0}, "rounds": 2}, marks=SLOW),
        pytest.param({"workload": "digits", "rounds": 2, "train_rows": 60}, marks=SLOW),
    ],
    ids=lambda given: " ".join(map(str, given)) or "nothing",
)
def test_the_same_call_goes_on_after_an_exception_and_once_more_when_it_is_finished(
    given, tmp_path
):
    with pytest.raises(StoppedError):
        call(tmp_path, callbacks=[stop_after_one], **given)
    assert len(fedlsg.load_run(tmp_path).rounds) == 1
    began = RunDir(tmp_path).read_config()
    run = call(tmp_path, resume=True, **given)
    assert run.summary["rounds"] == began.rounds
    assert RunDir(tmp_path).read_config() == began
    assert call(tmp_path, resume=True, **given).epsilon == run.epsilon


def test_a_finished_run_trains_further_where_nothing_names_its_method(tmp_path):
    first = call(tmp_path, rounds=2, epsilon=4.0).epsilon
    further = call(tmp_path, rounds=3, epsilon=6.0, resume=True)
    assert first < further.epsilon <= 6.0 * (1 + 1e-6)


@pytest.mark.parametrize(
    "other", [{"method": "lsg"}, {"optimizer": "adam"}, {"learning_rate": 0.2}, {"seed": 3}]
)
def test_another_setting_is_refused_as_before(other, tmp_path):
    """The negative control: what is given counts."""
    given = {"rounds": 2, "optimizer": "sgd", "learning_rate": 0.1}
    call(tmp_path, **given)
    name = next(iter(other))
    with refused("as it began", f"give {name}="):
        call(tmp_path, resume=True, **{**given, **other})


SCRIPT = """
import sys, time
import fedlsg
from torch import nn
from tests.simulations.support.own import TEST, TRAIN, build

fedlsg.simulate(
    model=build, train=TRAIN, test=TEST, loss=nn.CrossEntropyLoss(), clients=2, engine="local",
    callbacks=[lambda row: time.sleep(0.2)], out=sys.argv[1], {more}
)
"""


@pytest.mark.slow
def test_the_line_that_ctrl_c_prints_is_true(tmp_path):
    """A real SIGINT; then its own line, pasted into the call."""
    out = tmp_path / "run"
    started = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.replace("{more}", ""), str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while not (RunDir(out).has_checkpoint and RunDir(out).last_round() >= 2):
        assert started.poll() is None, started.communicate()[0]
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    text = started.communicate(timeout=60)[0].replace("\n", " ")
    said = re.search(r"continue with the same call, (out='[^']+') and (resume=True)", text)
    assert said is not None, text
    assert said.group(1) == f"out={str(out)!r}"
    again = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{more}", said.group(2)), str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert "damaged" not in again.stdout + again.stderr
    run = fedlsg.load_run(out)
    assert len(run.rounds) == run.summary["rounds"] > 2
