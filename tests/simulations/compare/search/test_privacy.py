"""What choosing costs: against dp-accounting's own composition, with the cases in which the sum
would be too low.
"""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from fedlsg.accounting import Event, compose
from fedlsg.config.partitions import SETTINGS
from fedlsg.privacy import Entry, Ledger
from fedlsg.simulations.compare.grid.runner import CELLS
from fedlsg.simulations.compare.search.cost_of_choosing import (
    PARTITION,
    Trial,
    epsilon_of,
    keep_charges,
    read_trials,
)
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.start_record import write_start

DELTA = 1e-5


def event(q: float = 0.1, sigma: float = 2.0, steps: int = 20) -> Event:
    return Event(sample_rate=q, noise_multiplier=sigma, steps=steps)


def trial(*clients: Event, partition: object = 0, private: bool = True) -> Trial:
    return Trial(
        partition=(partition,), events={k: (e,) for k, e in enumerate(clients)}, private=private
    )


def independent(*events: Event, delta: float = DELTA) -> float:
    """The same composition by dp-accounting alone."""
    accountant = PLDAccountant()
    for e in events:
        gaussian = dp_accounting.GaussianDpEvent(e.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(e.sample_rate, gaussian), e.steps)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize("count", [1, 2, 9])
def test_trials_on_the_same_rows_compose(count):
    own = event()
    found = epsilon_of([trial(own, own)] * count, delta=DELTA)
    exact = independent(event(steps=20 * count))
    assert exact * 0.999 <= found <= exact * 1.02 + 0.02
    assert found == compose([own] * count, delta=DELTA).upper


@pytest.mark.slow
def test_lambdas_of_trials_add_up():
    """Equal clients compose; unequal ones of two partitions cost the largest Lambda of each."""
    noisy = replace(event(), log_ratio=0.1)
    found = epsilon_of([trial(noisy, noisy)] * 3, delta=DELTA)
    exact = independent(event(steps=60), delta=DELTA * math.exp(-0.3)) + 0.6
    assert exact * 0.999 <= found <= exact * 1.02 + 0.02
    spread = epsilon_of(
        [trial(noisy, event(steps=5), partition=seed) for seed in range(2)], delta=DELTA
    )
    each = independent(event(), delta=DELTA / 2 * math.exp(-0.1)) + 0.2
    assert 2 * each * 0.999 <= spread <= 2 * (each * 1.02 + 0.02)


def test_unequal_clients_of_different_partitions_cost_an_upper_bound():
    many, few = event(steps=40), event(steps=5)
    same = [trial(many, few), trial(many, few)]
    assert epsilon_of(same, delta=DELTA) == epsilon_of([trial(many)] * 2, delta=DELTA)
    # a row may be with client 0 in one partition, and be as badly off in the other
    moved = [trial(many, few, partition=0), trial(few, many, partition=1)]
    assert epsilon_of(moved, delta=DELTA) >= epsilon_of([trial(many)] * 2, delta=DELTA)
    # negative control: client by client would be too low
    by_client = max(
        compose([many, few], delta=DELTA).upper, compose([few, many], delta=DELTA).upper
    )
    assert by_client < epsilon_of(moved, delta=DELTA)


def charge(path: Path, *, rounds: int, **changes: object) -> None:
    """A run directory whose client was charged for so many rounds."""
    run = RunDir(path)
    run.ledgers.mkdir(parents=True)
    run.config.write_text('workload = "digits"\nmethod = "dpsgd"\nseed = 100\nclients = 1\n')
    values = {
        "steps": 1,
        "sample_rate": 0.1,
        "noise_multiplier": 2.0,
        "clip_norm": 1.0,
        "num_examples": 100,
    }
    for round in range(rounds):
        entry = {"client": 0, "round": round, "attempt": 0, "mechanism": "dp"} | values | changes
        Ledger(run.ledger(0), client=0).charge(Entry(**entry))


def test_a_removed_trial_stays_in_the_cost_of_choosing(tmp_path):
    def begin(name: str, *, rounds: int) -> Path:
        path = tmp_path / CELLS / name
        charge(path, rounds=rounds)
        write_start(RunDir(path), given={}, arguments={}, notes=[], before={}, rows={})
        return path

    def steps() -> float:
        trials = read_trials(keep_charges(tmp_path))
        return sum(event.steps for trial in trials for event in trial.events[0])

    first = begin("a-trial000", rounds=3)
    begin("a-trial001", rounds=2)
    assert steps() == 5
    shutil.rmtree(first)
    assert len(read_trials(tmp_path / CELLS)) == 1  # negative control: the folder forgets it
    assert steps() == 5
    again = begin("a-trial000", rounds=1)  # it is run again, which costs once more
    assert steps() == 6
    entry = replace(Ledger(RunDir(again).ledger(0)).entries[0], round=1)
    Ledger(RunDir(again).ledger(0)).charge(entry)  # a trial that goes on is no other trial
    assert steps() == 7
    assert steps() == 7


def test_every_trial_in_the_folder_counts_also_interrupted_ones(tmp_path):
    charge(tmp_path / "a-seed100", rounds=3)
    charge(tmp_path / "b-seed100", rounds=2)
    (tmp_path / "c-seed100").mkdir()  # nothing was charged
    trials = read_trials(tmp_path)
    assert len(trials) == 2
    assert epsilon_of(trials, delta=DELTA) == compose([event(steps=5)], delta=DELTA).upper
    charge(tmp_path / "d-seed100", rounds=1, reproducible=True)
    assert epsilon_of(read_trials(tmp_path), delta=DELTA) == math.inf
    assert read_trials(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    "name", [*SETTINGS, "seed", "clients", "partition", "train_rows", "holdout"]
)
def test_whatever_moves_rows_between_clients_makes_another_partition(name):
    assert name in PARTITION
