"""Runs that start from the weights of another one: its ledgers go on, or the data are said to be
others.
"""

import shutil
import subprocess
import sys

import pytest
import torch

import fedlsg
from fedlsg.accounting import Event, compose
from fedlsg.privacy import SERVER, trained_weights
from fedlsg.simulations.server import server_app
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads import give
from tests.simulations.support.own import TEST, TRAIN, build, quick, workload

SECRET = {"reproducible": False, "epsilon": None}
TARGET = {"reproducible": False, "noise_multiplier": None}
IN_SECRET = {
    "unit": "client",
    "trust": "server",
    "clients": 4,
    "clients_per_round": 2,
    "batch_size": 5,
    "sample_rate": None,
}
UNEQUAL = {
    "partition": [list(range(10)), list(range(10, 60))],
    "clients": None,
    "sample_rate": None,
    "batch_size": 5,
}


def at(steps, noise=2.0):
    return Event(sample_rate=0.2, noise_multiplier=noise, steps=steps)


def exactly(*events):
    return compose(events, delta=1e-5).upper


def charged(run):
    charges = RunDir(run.directory).charges
    return {c: list(charges.of(c).entries) for c in (*charges.clients(), SERVER)}


FORMS = {
    "everybody": {},
    "some clients in each round": {"clients": 4, "clients_per_round": 2},
    "unequal clients": UNEQUAL,
    "shared noise": {"trust": "aggregate"},
    "whole clients, drawn in secret": IN_SECRET,
}


def check_both_runs_count(folder, **given):
    """Every client has the entries of both runs, and epsilon is that of the whole ledger."""
    first = quick(folder / "first", rounds=2, **SECRET, **given)
    second = quick(folder / "second", rounds=3, start_from=first, **SECRET, **given)
    before, after = charged(first), charged(second)
    for client, own in before.items():
        assert [e.noise_multiplier for e in after[client][: len(own)]] == [
            e.noise_multiplier for e in own
        ]
        assert len(after[client]) >= len(own)
    whole = [tuple(RunDir(second.directory).charges.of(c).events()) for c in after]
    assert second.epsilon == pytest.approx(max(exactly(*events) for events in whole if events))
    assert second.epsilon > quick(folder / "alone", rounds=3, **SECRET, **given).epsilon
    assert torch.equal(start_of(second), end_of(first))


def start_of(run):
    plan = run._plan
    return torch.cat([p.flatten() for p in plan.initial.model().parameters()])


def end_of(run):
    return torch.cat([p.flatten() for p in run.model.parameters()])


@pytest.mark.thinned(1)
@pytest.mark.parametrize("form", FORMS)
def test_both_runs_count(form, tmp_path):
    check_both_runs_count(tmp_path, **FORMS[form])


def test_a_dropped_ledger_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(server_app, "carry_over", lambda base, run: None)
    with pytest.raises((AssertionError, KeyError)):
        check_both_runs_count(tmp_path)


@pytest.mark.slow
def test_epsilon_is_that_of_one_run_of_the_sum(tmp_path):
    first = quick(tmp_path / "first", rounds=2, **SECRET)
    second = quick(tmp_path / "second", rounds=3, start_from=tmp_path / "first", **SECRET)
    third = quick(tmp_path / "third", rounds=1, start_from=str(second.directory), **SECRET)
    assert first.epsilon == pytest.approx(exactly(at(2)))
    assert second.epsilon == pytest.approx(exactly(at(5)))
    assert third.epsilon == pytest.approx(exactly(at(6)))
    assert third.summary["start_from"] == "second"
    further = quick(tmp_path / "third", rounds=2, resume=True, **SECRET)
    assert further.epsilon == pytest.approx(exactly(at(7)))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("form", FORMS)
def test_a_target_covers_both_runs(form, tmp_path, capsys):
    given = FORMS[form]
    quick(tmp_path / "first", rounds=2, **SECRET, **given)
    second = quick(
        tmp_path / "second",
        rounds=3,
        epsilon=8.0,
        start_from=tmp_path / "first",
        **TARGET | given | {"quiet": False},
    )
    assert second.epsilon <= 8.0
    if "clients_per_round" not in given:
        assert second.epsilon > 7.8
    assert "the epsilon of both together will be" in capsys.readouterr().out


@pytest.mark.slow
def test_an_interrupted_start_goes_on_and_counts_once(tmp_path):
    quick(tmp_path / "first", rounds=2, **SECRET)

    def stop(row):
        raise KeyError("stop")

    given = {"start_from": tmp_path / "first", "rounds": 3, **SECRET}
    with pytest.raises(KeyError):
        quick(tmp_path / "second", callbacks=[stop], **given)
    assert quick(tmp_path / "second", resume=True, **given).epsilon == pytest.approx(exactly(at(5)))


@pytest.mark.slow
def test_clients_that_came_or_left_carry_what_each_row_may_have_cost(tmp_path):
    """Where all clients have spent the same, or one has spent most: nobody knows who held a row."""
    quick(tmp_path / "first", rounds=2, **SECRET)
    more = quick(tmp_path / "more", rounds=1, clients=3, start_from=tmp_path / "first", **SECRET)
    fewer = {"train": (TRAIN[0][:30], TRAIN[1][:30]), "clients": 1}
    left = quick(tmp_path / "left", rounds=1, start_from=tmp_path / "first", **SECRET, **fewer)
    assert more.epsilon == left.epsilon == pytest.approx(exactly(at(3)))
    assert sorted(RunDir(more.directory).charges.clients()) == [0, 1, 2]
    some = {"clients": 4, "clients_per_round": 1}
    quick(tmp_path / "some", rounds=3, **SECRET, **some)
    most = max(len(own) for own in charged(fedlsg.load_run(tmp_path / "some")).values())
    all_of = quick(tmp_path / "all", rounds=1, start_from=tmp_path / "some", **SECRET)
    assert all_of.epsilon == pytest.approx(exactly(at(most + 1)))


@pytest.mark.slow
def test_rows_that_are_dealt_anew_are_said(tmp_path):
    given = {**SECRET, "partition": "dirichlet", "alpha": 0.5, "clients": 3}
    first = quick(tmp_path / "first", **given)
    (note,) = quick(tmp_path / "anew", start_from=first, **SECRET)._plan.notes
    assert note.startswith(
        "rows are dealt to other clients than in first: it had clients=3, partition=dirichlet, "
        "alpha=0.5; this run has clients=2, partition=iid. "
    )
    (seed,) = quick(tmp_path / "seed", start_from=first, seed=1, **given)._plan.notes
    assert "it had seed=0; this run has seed=1." in seed
    # negative control
    assert not quick(tmp_path / "same", start_from=first, **given)._plan.notes


REFUSED = {
    "clients that spent differently, dealt anew": (
        {**UNEQUAL, "noise_multiplier": None, "epsilon": 3.0},
        {},
        "have spent differently",
    ),
    "no privacy": ({"method": "sgd", "noise_multiplier": None}, {}, "has no finite epsilon"),
    "a known noise": ({"reproducible": True}, {}, "has no finite epsilon"),
    "another unit": ({}, {**IN_SECRET}, "protects another unit"),
    "spent already": ({}, {"noise_multiplier": None, "epsilon": 0.5}, "have spent 0.86"),
    "other data": ({}, {"fresh_data": True}, "start_from=.* does not go with fresh_data"),
    "other weights": ({}, {"pretrained": "w.pt"}, "leave pretrained=w.pt out"),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", REFUSED)
def test_a_start_without_an_epsilon_is_refused_and_leaves_nothing(case, tmp_path):
    before, given, words = REFUSED[case]
    quick(tmp_path / "first", **SECRET | {"rounds": 2} | before)
    with pytest.raises(ValueError, match=words):
        quick(tmp_path / "second", **SECRET | {"start_from": tmp_path / "first"} | given)
    assert not (tmp_path / "second").exists()


def saved(folder):
    torch.save(fedlsg.load_run(folder / "run", workload=own()).model.state_dict(), folder / "w.pt")
    return folder / "w.pt"


def copied(folder):
    return shutil.copy(folder / "run" / "model.safetensors", folder / "copy.safetensors")


def own():
    return fedlsg.Workload(
        model=build, train=TRAIN, test=TEST, loss=torch.nn.CrossEntropyLoss(), name="own"
    )


@pytest.mark.thinned(1)
@pytest.mark.parametrize("later", [False, True], ids=["this process", "a later process"])
@pytest.mark.parametrize("file", [saved, copied])
def test_weights_in_a_file_are_known_by_their_digests(file, later, tmp_path, monkeypatch):
    quick(tmp_path / "run", **SECRET)
    weights = str(file(tmp_path))
    if later:  # its memory is empty: what is left is the list of this user
        for name in ("_DIGESTS", "_PARAMETERS"):
            monkeypatch.setattr(trained_weights, name, type(getattr(trained_weights, name))())
    with pytest.raises(ValueError, match=r"start_from=RUN.*fresh_data=True"):
        quick(tmp_path / "other", pretrained=weights, **SECRET)
    run = quick(tmp_path / "other", pretrained=weights, fresh_data=True, **SECRET)
    assert run.summary["fresh_data"] is True
    assert run.epsilon == pytest.approx(exactly(at(1)))


@pytest.mark.slow
def test_a_user_s_rows_are_not_told_apart_by_the_name_of_their_workload(tmp_path):
    """The folder of a run has a record of the name; the rows are the same under another one."""
    quick(tmp_path / "run", **SECRET)
    give("another name", workload())
    given = {"workload": "another name", "pretrained": str(tmp_path / "run"), **SECRET}
    with pytest.raises(ValueError, match=r"start_from=RUN.*fresh_data=True"):
        quick(tmp_path / "other", **given)
    assert quick(tmp_path / "other", fresh_data=True, **given).summary["fresh_data"] is True


@pytest.mark.slow
def test_a_start_that_was_cut_off_before_its_first_checkpoint_is_planned_again(
    tmp_path, monkeypatch
):
    """Its noise is that of both runs together, as if it had not been cut off."""
    first = quick(tmp_path / "first", **TARGET, epsilon=1.0, delta=1e-3)
    given = {**TARGET, "epsilon": 2.0, "delta": 1e-3}
    whole = quick(tmp_path / "whole", start_from=first, **given)

    def cut(plan, run):
        raise OSError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(server_app, "carry_over", cut)
        with pytest.raises(OSError, match="cut off"):
            quick(tmp_path / "second", start_from=first, **given)
    second = quick(tmp_path / "second", start_from=first, resume=True, **given)
    assert second.summary["noise_multiplier"] == whole.summary["noise_multiplier"]
    assert second.epsilon == whole.epsilon


@pytest.mark.slow
def test_other_weights_in_a_file_are_not(tmp_path):
    """The control: public weights, and those of the first round's start."""
    quick(tmp_path / "run", **SECRET)
    torch.save(build().state_dict(), tmp_path / "public.pt")
    run = quick(tmp_path / "other", pretrained=str(tmp_path / "public.pt"), **SECRET)
    assert "fresh_data" not in run.summary


@pytest.mark.slow
def test_the_record_of_the_process_counts_the_first_run_once(tmp_path):
    data = tuple(part.copy() for part in TRAIN)
    quick(tmp_path / "first", rounds=2, train=data, **SECRET)
    quick(tmp_path / "second", rounds=3, train=data, start_from=tmp_path / "first", **SECRET)
    assert fedlsg.epsilon_of_data(data) == pytest.approx(exactly(at(5)))


@pytest.mark.slow
def test_the_command_line_starts_from_a_run_and_trains_further(tmp_path):
    def fedlsg_(*words):
        done = subprocess.run(
            [sys.executable, "-m", "fedlsg", *words], cwd=tmp_path, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    common = ["--engine", "local", "--clients", "2", "--noise-multiplier", "2"]
    assert fedlsg_("run", *common, "--rounds", "2", "--out", "a")[0] == 0
    status, said = fedlsg_("resume", "a", "--rounds", "3")
    assert (status, "2 rounds are finished, 1 follow" in said) == (0, True)
    status, said = fedlsg_("run", *common, "--rounds", "1", "--start-from", "a", "--out", "b")
    assert (status, "the epsilon of both together" in said) == (0, True)
    shutil.copy(tmp_path / "a" / "model.safetensors", tmp_path / "w.safetensors")
    status, said = fedlsg_("run", *common, "--pretrained", "w.safetensors", "--out", "c")
    assert (status, "fresh_data" in said) == (1, True)
