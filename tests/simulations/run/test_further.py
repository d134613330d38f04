"""Runs that train further: their ledgers go on, and epsilon is that of all rounds together."""

import contextlib
import json
import math
import shutil

import pytest
import torch

import fedlsg
from fedlsg.accounting import Event, compose
from fedlsg.privacy.run_ledger import ClientCharges, RunLedger
from fedlsg.simulations.planning.earlier_runs import continuity
from fedlsg.simulations.storage import run_directory
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.own import quick

SECRET = {"reproducible": False, "epsilon": None}
CONSTANT = {"learning_rate": 0.1, "schedule": "constant"}
TARGET = {"reproducible": False, "noise_multiplier": None}


def weights(run):
    return torch.cat([p.flatten() for p in run.model.parameters()])


def entries(folder):
    charges = RunDir(folder).charges
    return {client: list(charges.of(client).entries) for client in charges.clients()}


def of_events(*parts, delta=1e-5):
    events = [Event(sample_rate=q, noise_multiplier=s, steps=n) for q, s, n in parts]
    return compose(events, delta=delta).upper


def check_both_parts_count(folder, between=lambda: None, **given):
    """The epsilon of two and three rounds is that of five with the same noise."""
    whole = quick(folder / "whole", rounds=5, **SECRET, **given)
    quick(folder / "run", rounds=2, **SECRET, **given)
    between()
    further = quick(folder / "run", rounds=5, resume=True, **SECRET, **given)
    for name in ("epsilon_max", "epsilon_median", "epsilon_by_reader"):
        assert further.summary[name] == whole.summary[name]
    assert [row["epsilon_max"] for row in further.rounds] == [
        row["epsilon_max"] for row in whole.rounds
    ]


FORMS = {
    "everybody": {},
    "some clients in each round": {"clients": 4, "clients_per_round": 2},
    "clients of unequal size": {
        "partition": [list(range(10)), list(range(10, 60))],
        "clients": None,
        "sample_rate": None,
        "batch_size": 5,
    },
    "two local steps": {"local_steps": 2},
    "shuffled batches": {"sampling": "shuffle", "batch_size": 5, "sample_rate": None},
    "shared noise": {"trust": "aggregate"},
    "a secure sum": {"trust": "secure", "clients": 3},
    "whole clients": {
        "unit": "client",
        "trust": "secure",
        "clients": 3,
        "batch_size": 5,
        "sample_rate": None,
    },
    "whole clients, drawn in secret": {
        "unit": "client",
        "trust": "server",
        "clients": 4,
        "clients_per_round": 2,
        "batch_size": 5,
        "sample_rate": None,
    },
    "a pruning round": {"method": "dp-ssgd", "prune": "dp-snip", "prune_rate": 0.2},
}


SAME_NOISE = [name for name in FORMS if name not in ("a secure sum", "a pruning round")]
"""Of the others noise, or the grid of sums, is planned for the number of rounds."""


@pytest.mark.slow
@pytest.mark.parametrize("form", SAME_NOISE)
def test_epsilon_counts_both_parts(form, tmp_path):
    check_both_parts_count(tmp_path, **FORMS[form])


def test_a_forgotten_first_part_is_caught(tmp_path, monkeypatch):
    class Later(RunLedger):
        """A ledger that has dropped what was charged in the first part."""

        def of(self, client):
            return LaterCharges(self, client)

    class LaterCharges(ClientCharges):
        @property
        def entries(self):
            return [entry for entry in super().entries if entry.round > 2]

    with pytest.raises(AssertionError):
        check_both_parts_count(
            tmp_path, lambda: monkeypatch.setattr(run_directory, "RunLedger", Later)
        )


@pytest.mark.slow
def test_a_ledger_that_is_gone_is_refused(tmp_path):
    quick(tmp_path / "run", rounds=2, **SECRET)
    shutil.rmtree(tmp_path / "run" / "ledger")
    with pytest.raises(ValueError, match=r"ledger.*"):
        quick(tmp_path / "run", rounds=3, resume=True, **SECRET)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpsgd", "lsg"])
def test_it_ends_as_one_run_of_all_rounds(method, tmp_path):
    """Where no schedule depends on the number of rounds."""
    given = CONSTANT | {"method": method} | ({"rank": 2} if method == "lsg" else {})
    whole = quick(tmp_path / "whole", rounds=4, **given)
    quick(tmp_path / "run", rounds=2, **given)
    further = quick(tmp_path / "run", rounds=4, resume=True, **given)
    assert torch.equal(weights(further), weights(whole))
    assert [row["loss"] for row in further.rounds] == [row["loss"] for row in whole.rounds]


@pytest.mark.slow
def test_a_schedule_of_the_rate_is_that_of_all_rounds(tmp_path):
    """The rate of the next update at once: that of the old schedule's end is nearly none."""
    given = {"schedule": "cosine", "learning_rate": 1.0}
    quick(tmp_path / "run", rounds=4, **given)
    ended = RunDir(tmp_path / "run").load_checkpoint()["server"]["optimizer"]["param_groups"]
    assert ended[0]["lr"] < 1e-6
    rates = []

    def look(row):
        state = RunDir(tmp_path / "run").load_checkpoint()["server"]
        rates.append(state["optimizer"]["param_groups"][0]["lr"])

    quick(tmp_path / "run", rounds=8, resume=True, callbacks=[look], **given)
    expected = [0.5 * (1 + math.cos(math.pi * update / 8)) for update in (5, 6, 7, 8)]
    assert rates == pytest.approx(expected, abs=1e-9)
    moved = [row["loss"] for row in fedlsg.load_run(tmp_path / "run").rounds]
    assert moved[4] != moved[3], "the first update of the second part has the rate of the middle"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_target_covers_both_parts(form, tmp_path, capsys):
    given = TARGET | FORMS[form]
    first = quick(tmp_path / "run", rounds=2, epsilon=3.0, **given)
    assert 2.8 < first.epsilon <= 3.0
    further = quick(
        tmp_path / "run", rounds=4, epsilon=5.0, resume=True, **given | {"quiet": False}
    )
    assert further.epsilon <= 5.0
    if "clients_per_round" not in given and "sampling" not in given:
        # else noise is for the client that is drawn most often, or for an epoch more
        assert further.epsilon > 4.7
    assert "2 rounds are finished, 2 follow: at noise multiplier" in capsys.readouterr().out
    assert fedlsg.load_run(tmp_path / "run").summary["rounds"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("form", ["everybody", "clients of unequal size"])
def test_an_interrupted_second_part_goes_on_with_its_noise(form, tmp_path):
    given = TARGET | FORMS[form]
    quick(tmp_path / "run", rounds=2, epsilon=3.0, **given)

    def stop(row):
        if row["round"] == 3:
            raise KeyError("stop")

    with pytest.raises(KeyError):
        quick(tmp_path / "run", rounds=5, epsilon=5.0, resume=True, callbacks=[stop], **given)
    run = quick(tmp_path / "run", rounds=5, epsilon=5.0, resume=True, **given)
    for own in entries(tmp_path / "run").values():
        noise = [entry.noise_multiplier for entry in own]
        assert noise[0] == noise[1] != noise[2]
        assert noise[2] == noise[3] == noise[4]
    assert 4.7 < run.epsilon <= 5.0


@pytest.mark.slow
def test_the_total_is_printed_before_the_first_charge(tmp_path, monkeypatch, capsys):
    quick(tmp_path / "run", rounds=2, **SECRET)
    seen = []
    go_further = continuity.go_further

    def look(plan, run, saved):
        seen.append((capsys.readouterr().out, len(entries(run.path)[0])))
        go_further(plan, run, saved)

    monkeypatch.setattr("fedlsg.simulations.run.commands.go_further", look)
    run = quick(tmp_path / "run", rounds=5, resume=True, **SECRET | {"quiet": False})
    ((printed, charged),) = seen
    said = f"epsilon of both together will be {math.ceil(1000 * run.epsilon) / 1000:.3f} at delta"
    assert said in printed
    assert charged == 2


@pytest.mark.slow
def test_runs_that_stopped_early_or_were_interrupted_train_further(tmp_path):
    def stop(row):
        if row["round"] == 2:
            raise fedlsg.StopRun("enough")

    def fail(row):
        if row["round"] == 2:
            raise KeyError("mine")

    whole = quick(tmp_path / "whole", rounds=6, **CONSTANT)
    quick(tmp_path / "stopped", rounds=4, callbacks=[stop], **CONSTANT)
    with pytest.raises(KeyError):
        quick(tmp_path / "failed", rounds=4, callbacks=[fail], **CONSTANT)
    for name in ("stopped", "failed"):
        further = quick(tmp_path / name, rounds=6, resume=True, **CONSTANT)
        assert torch.equal(weights(further), weights(whole))


@pytest.mark.slow
def test_a_run_trains_further_several_times_at_another_noise(tmp_path):
    quick(tmp_path / "run", rounds=1, **SECRET)
    quick(tmp_path / "run", rounds=2, resume=True, **SECRET)
    run = quick(tmp_path / "run", rounds=3, resume=True, **SECRET)
    assert run.epsilon == pytest.approx(of_events((0.2, 2.0, 3)))
    given = {"reproducible": False}
    more = quick(tmp_path / "run", rounds=4, noise_multiplier=1.0, resume=True, **given)
    assert more.epsilon == pytest.approx(of_events((0.2, 2.0, 3), (0.2, 1.0, 1)))


REFUSED = {
    "fewer rounds": (SECRET | {"rounds": 2}, "rounds=2 counts all rounds, and 3 are finished"),
    "another setting": (SECRET | {"rounds": 5, "clip_norm": 3.0}, "clip_norm"),
    "a target that is spent": (
        TARGET | {"rounds": 5, "epsilon": 0.5},
        "epsilon=0.5 is for all rounds together, and the clients have spent",
    ),
    "noise for which one round is too much": (
        {"reproducible": False, "rounds": 5, "epsilon": 3.0, "noise_multiplier": 0.3},
        "one round costs epsilon",
    ),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_go_on_is_refused_and_changes_nothing(case, tmp_path):
    given, words = REFUSED[case]
    quick(tmp_path / "run", rounds=3, **SECRET)
    before = files(tmp_path / "run")
    with pytest.raises(ValueError, match=words):
        quick(tmp_path / "run", resume=True, **given)
    assert files(tmp_path / "run") == before


def files(folder):
    left_out = (".lock", "run.log")
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in left_out
    }


@pytest.mark.thinned(1)
@pytest.mark.parametrize("at", range(8))
def test_a_crash_before_the_first_charge_leaves_one_run_or_the_other(at, tmp_path, monkeypatch):
    """At each write and removal of the change of plan: what is left is read as the finished run,
    or goes on as the longer one, and both count all rounds.
    """
    first = quick(tmp_path / "run", rounds=2, **SECRET)
    epsilon, steps = first.epsilon, iter(range(100))

    def crashing(function):
        def step(*args, **kwargs):
            if next(steps) == at:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return step

    with monkeypatch.context() as patch:
        for name in ("save_checkpoint", "write_config"):
            patch.setattr(RunDir, name, crashing(getattr(RunDir, name)))
        for name in ("settle", "reopen", "fingerprint"):
            patch.setattr(continuity, name, crashing(getattr(continuity, name)))
        patch.setattr("fedlsg.simulations.run.commands.execute", crashing(lambda *_, **__: None))
        with contextlib.suppress(KeyboardInterrupt):
            quick(tmp_path / "run", rounds=4, resume=True, **SECRET)
    assert all(len(own) == 2 for own in entries(tmp_path / "run").values())
    left = fedlsg.load_run(tmp_path / "run")
    assert len(left.rounds) == 2
    assert left.epsilon == epsilon
    rounds = RunDir(tmp_path / "run").load_checkpoint()["plan"]["settings"]["rounds"]
    again = quick(tmp_path / "run", rounds=rounds, resume=True, **SECRET)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == rounds
    assert again.epsilon == pytest.approx(of_events((0.2, 2.0, rounds)))
    assert rounds in (2, 4)
