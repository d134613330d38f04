"""What a simulated run leaves in the records of its process: its rows, its weights; and test mode
has no epsilon.
"""

import copy
import json
import math
import warnings
from importlib.metadata import EntryPoint

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import fedlsg
from fedlsg import user_code
from fedlsg.accounting import Event, compose
from fedlsg.privacy.data_record import SpentTogetherWarning
from fedlsg.simulations import workloads
from fedlsg.simulations.models.small import digits_mlp
from fedlsg.simulations.report.page_of_run.run_page import write_run_page
from fedlsg.simulations.run import on_record
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.strategies.private_step import PrivateStep
from tests.simulations.support.own import TEST, TRAIN, WIDTH, build, quick, workload

DIGITS = (np.random.default_rng(0).random((40, 1, 8, 8), np.float32), np.arange(40) % 10)
OF_PACKAGE = tuple(part.copy() for part in TRAIN)
SECRET = {"reproducible": False, "epsilon": None}


def rows():
    return tuple(part.copy() for part in TRAIN)


def exactly(steps):
    return compose([Event(sample_rate=0.2, noise_multiplier=2.0, steps=steps)], delta=1e-5).upper


def table(data):
    return pd.DataFrame(data[0], columns=[f"x{n}" for n in range(WIDTH)]).assign(
        label=data[1].astype(int)
    )


FORMS = {
    "arrays": (lambda data: data, lambda data: data),
    "a part of the arrays": (lambda data: data, lambda data: data[0][40:]),
    "a Dataset": (
        lambda data: TensorDataset(
            torch.from_numpy(data[0]).float(), torch.from_numpy(data[1]).long()
        ),
        lambda data: torch.utils.data.Subset(data, [1]),
    ),
    "a table": (table, lambda data: data[:9]),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", FORMS)
def test_a_sweep_spends_on_its_rows_in_each_run(name, tmp_path):
    make, part = FORMS[name]
    data = make(rows())
    given = SECRET | {
        "train": data,
        "test": TEST if name != "a table" else table(TEST),
        "partition": "iid",
    }
    first = quick(tmp_path / "1", **given)
    assert first.epsilon == pytest.approx(exactly(1))
    assert fedlsg.epsilon_of_data(part(data)) == pytest.approx(exactly(1))
    with pytest.warns(SpentTogetherWarning) as caught:
        second = quick(tmp_path / "2", **given, rounds=3)
    assert caught[0].filename.endswith("own.py"), "the line that calls simulate"
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpentTogetherWarning)
        quick(tmp_path / "3", **given)
    assert second.epsilon == pytest.approx(exactly(3))
    assert fedlsg.epsilon_of_data(data) == pytest.approx(exactly(5))


@pytest.mark.slow
def test_the_sum_is_printed_and_a_resumed_run_counts_once(tmp_path, capsys):
    data = rows()

    class Stop(fedlsg.Callback):
        def on_round(self, row):
            if row["round"] == 1:
                raise fedlsg.StopRun("enough")

    given = SECRET | {"train": data, "rounds": 2, "quiet": False}
    quick(tmp_path / "run", **given, callbacks=[Stop()])
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpentTogetherWarning)
        quick(tmp_path / "run", **given, resume=True)
    assert fedlsg.epsilon_of_data(data) == pytest.approx(exactly(2))
    assert "all runs of this process" not in capsys.readouterr().out
    quick(tmp_path / "other", **given)
    assert (
        f"these rows: epsilon {math.ceil(1000 * exactly(4)) / 1000:.3f} at"
        in capsys.readouterr().out
    )


def test_a_run_that_fails_has_spent(tmp_path):
    data = rows()

    def fail(row):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        quick(tmp_path / "run", **SECRET, train=data, rounds=2, callbacks=[fail])
    assert fedlsg.epsilon_of_data(data) == pytest.approx(exactly(1))


def test_a_file_is_known_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(TRAIN).to_csv("train.csv", index=False)
    quick(tmp_path / "run", **SECRET, train="train.csv", test=table(TEST))
    assert fedlsg.epsilon_of_data("train.csv") == pytest.approx(exactly(1))
    assert fedlsg.epsilon_of_data(tmp_path / "train.csv") == pytest.approx(exactly(1))
    assert fedlsg.epsilon_of_data("other.csv") == 0.0


def test_clients_of_other_rates_count_as_the_worst_of_them(tmp_path):
    data = rows()
    found = quick(
        tmp_path / "run",
        **SECRET | {"sample_rate": None},
        train=data,
        batch_size=5,
        partition=[list(range(40)), list(range(40, 60))],
    )
    assert fedlsg.epsilon_of_data(data) == pytest.approx(found.epsilon)


def private_step(net, **given):
    return PrivateStep(
        net,
        nn.CrossEntropyLoss(),
        num_examples=60,
        method="dpsgd",
        sample_rate=0.2,
        steps=2,
        noise_multiplier=2.0,
        delta=1e-5,
        **given,
    )


def saved(found, place=""):
    net = build()
    net.load_state_dict(load_file(found.directory / place / "model.safetensors"))
    return net


def clamped(net):
    with torch.no_grad():
        for p in net.parameters():
            p.clamp_(-0.01, 0.01)
    return net


FROM = {
    "the run's model": lambda found: found.model,
    "clamped": lambda found: clamped(found.model),
    "a copy": lambda found: copy.deepcopy(found.model),
    "loaded later": lambda found: fedlsg.load_run(found.directory, workload=on_data(found)).model,
    "its file": saved,
    "the file of its best round": lambda found: saved(found, "best"),
}


def on_data(found):
    return fedlsg.Workload(
        model=build, train=TRAIN, test=TEST, loss=nn.CrossEntropyLoss(), name="own"
    )


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", FROM)
def test_a_run_s_weights_are_refused_without_its_ledger(name, tmp_path):
    found = quick(tmp_path / "run", **SECRET, rounds=2, callbacks=[fedlsg.BestModel()])
    net = FROM[name](found)
    for ledger in (None, tmp_path / "new.jsonl"):
        with pytest.raises(
            ValueError, match=r"was trained by an earlier private step or run.*fresh_data=True"
        ):
            private_step(net, ledger=ledger)
    with pytest.raises(
        ValueError, match=r"was trained by .*resume=True.*ledger=PATH.*fresh_data=True"
    ):
        quick(tmp_path / "next", **SECRET, model=lambda: net)
    assert not (tmp_path / "next").exists()
    quick(tmp_path / "next", **SECRET, model=lambda: net, fresh_data=True)
    private_step(net, fresh_data=True)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "change", [lambda net: net, clamped, copy.deepcopy, lambda net: net.double().float()]
)
def test_a_run_does_not_go_on_from_what_a_private_step_trained(change, tmp_path):
    net = build()
    step = private_step(net, ledger=tmp_path / "ledger.jsonl")
    step.step(step.batches((rows()[0].astype(np.float32), rows()[1])))
    net = change(net)
    with pytest.raises(ValueError, match="was trained by"):
        quick(tmp_path / "run", **SECRET, model=lambda: net)


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "given",
    [
        {"method": "lora", "rank": 1},
        {"method": "linear-probe"},
        {"method": "sparse-dpsgd"},
        {"method": "sgd", "noise_multiplier": None},
    ],
)
def test_new_weights_of_the_same_seed_are_no_false_alarm(given, tmp_path):
    for number in range(2):
        found = quick(tmp_path / str(number), **SECRET | given)
        assert isinstance(found.model, nn.Module)


def test_a_planted_mistake_is_found(tmp_path, monkeypatch):
    found = quick(tmp_path / "run", **SECRET)
    net = found.model
    monkeypatch.setattr(on_record.Writer, "check", lambda self, model, way: None)
    quick(tmp_path / "next", **SECRET, model=lambda: net)


@pytest.mark.slow
def test_test_mode_has_no_epsilon_at_any_door(tmp_path, capsys):
    """Result, table of rounds, summary, callbacks, lines, pages: nobody reads a number there."""
    data, seen = rows(), []
    found = quick(tmp_path / "run", train=data, quiet=False, rounds=2, callbacks=[seen.append])
    printed = capsys.readouterr().out
    assert (
        found.epsilon == found.summary["epsilon_max"] == found.summary["epsilon_median"] == math.inf
    )
    assert [row["epsilon_max"] for row in (*found.rounds, *seen)] == [math.inf] * 4
    assert (found.summary["private"], found.summary["epsilon_by_reader"]) == (False, {})
    assert json.loads((found.directory / "summary.json").read_text())["epsilon_max"] == "inf"
    assert "NOT PRIVATE: the noise is reproducible" in printed
    number = f"{exactly(2):.2f}"[:-1]
    write_run_page(RunDir(found.directory))
    page = (found.directory / "report.html").read_text()
    assert not any(f"epsilon {number}" in text for text in (printed, repr(found), page))
    assert "epsilon inf" in printed
    secret = quick(tmp_path / "secret", **SECRET, rounds=2)
    assert f"epsilon {number}" in repr(secret), (
        "the control: the same words have the number where there is one"
    )
    assert fedlsg.epsilon_of_data(data) == math.inf


def packaged():
    return workload(train=OF_PACKAGE)


def test_two_names_that_a_package_offers_may_be_of_the_same_rows(monkeypatch, tmp_path):
    offered = {
        name: EntryPoint(name, f"{__name__}:packaged", workloads.GROUP)
        for name in ("package-a", "package-b")
    }
    monkeypatch.setattr(
        user_code, "offered", lambda group: offered if group == workloads.GROUP else {}
    )
    quick(tmp_path / "1", workload="package-a")
    with pytest.raises(ValueError, match="was trained by an earlier private step or run"):
        quick(tmp_path / "2", workload="package-b", pretrained=tmp_path / "1")


@pytest.mark.parametrize("name", ["mine", "digits of mine"])
def test_weights_of_own_rows_are_recognised_whatever_their_workload_is_called(name, tmp_path):
    own = workload(name=name, model=digits_mlp, train=DIGITS, test=DIGITS)
    quick(tmp_path / "1", workload=own)
    with pytest.raises(ValueError, match="was trained by an earlier private step or run"):
        quick(tmp_path / "2", workload="digits", model="mlp", pretrained=tmp_path / "1")
