"""Rows that worker processes make are those of this process, and a lost worker has a name."""

import gc
import os
import random
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from fedlsg.randomness import SecretStream, reproducible_stream, secret_stream
from fedlsg.rows import LostWorkerError, OneByOne, RowWorkers
from fedlsg.rows.one_by_one import KeyedRow, same_row
from fedlsg.strategies.private_step import PrivateStep

CPU = torch.device("cpu")


class Noisy(Dataset):
    """Rows of several lengths, with draws of all generators, one of its own, and a seed."""

    def __init__(self):
        self.own = None

    def __len__(self):
        return 40

    def __getitem__(self, place):
        if self.own is None:
            self.own = np.random.default_rng(0)
        seeded = torch.Generator().manual_seed(place)
        drawn = [torch.rand(1).item(), random.random(), np.random.rand(), self.own.random()]
        drawn += [torch.rand(1, generator=seeded).item()]
        return torch.tensor([float(place), *drawn, *[1.0] * (place % 2)]), place % 3


class Killed(Noisy):
    """Its row 7 ends the process that makes it, as a lack of memory does; in a worker alone."""

    def __init__(self):
        super().__init__()
        self.parent = os.getpid()

    def __getitem__(self, place):
        if place == 7 and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(place)


def rows_with(workers, start=None):
    data = Noisy()
    batch = OneByOne(data.__getitem__, data, device=CPU, workers=workers, start=start)
    batch.rows(torch.tensor([0]))
    batch.find_generators()
    batch.draw_from(reproducible_stream(3, "rows"))
    groups = batch.groups(torch.tensor([1, 2, 5, 8, 9, 30, 31]))
    made = [batch(group) for group in groups]
    batch.draw_from(None)
    return groups, made


@pytest.fixture(scope="module")
def in_this_process():
    return rows_with(0)


@pytest.mark.parametrize(
    ("workers", "start"),
    [
        (1, "fork"),
        (4, "fork"),
        (1, "spawn"),
        pytest.param(4, "spawn", marks=pytest.mark.slow),  # torch is imported four times
    ],
)
def test_rows_of_workers_are_those_of_this_process(workers, start, in_this_process):
    groups, made = rows_with(workers, start)
    assert [group.tolist() for group in groups] == [g.tolist() for g in in_this_process[0]]
    assert all(same_row(a, b) for a, b in zip(made, in_this_process[1], strict=True))


def test_another_secret_gives_other_rows_and_no_stream_reaches_a_worker(in_this_process):
    data = Noisy()
    one = KeyedRow(data.__getitem__, data, torch.float32, None)
    one.draws.stream = secret_stream()
    with pytest.raises(TypeError, match="never leave their process"):
        one.draws.stream.__reduce__()
    assert one.__getstate__()["draws"] is None
    other, same = one((1, bytes(16))), one((1, bytes(16)))
    assert same_row(other, same)
    assert not same_row(other, one((1, bytes(15) + b"\1")))


def test_rows_are_made_ahead_within_their_room(tmp_path):
    made = RowWorkers(tmp_path.joinpath, 1, start="fork")
    made.open()
    made.begin([str(n) for n in range(100)], room=16)
    assert len(made._running) * 8 == 16
    assert [path.name for path in made.take(3)] == ["0", "1", "2"]
    made.begin(["again"], room=16)
    assert [path.name for path in made.take(1)] == ["again"], "what was asked before is forgotten"
    made.close()


class Same(Dataset):
    """Rows of another data set cut to one length."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return 40

    def __getitem__(self, place):
        inputs, target = self.rows[place]
        return inputs[:6], target


class HoldsSecrets(Same):
    """A row says whether its process has a stream that draws, or the keys of a batch's rows.

    Row 7 ends its worker until ``lost`` exists.
    """

    def __init__(self, lost):
        super().__init__(Noisy())
        self.lost, self.parent = lost, os.getpid()

    def __getitem__(self, place):
        if os.getpid() != self.parent and place == 7 and not self.lost.exists():
            self.lost.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        objects = gc.get_objects()
        streams = [s for s in objects if type(s) is SecretStream and s._cipher is not None]
        keyed = [b for b in objects if type(b) is OneByOne and b._keys]
        return torch.tensor([float(len(streams)), float(len(keyed))]), 0


@pytest.mark.parametrize("workers", [0, 1])
def test_the_worker_that_replaces_a_lost_one_has_no_stream_and_no_batch(workers, tmp_path):
    data = HoldsSecrets(tmp_path / "lost")
    batch = OneByOne(data.__getitem__, data, device=CPU, workers=workers, start="fork")
    places = torch.tensor([5, 7])
    if workers:
        batch.draw_from(secret_stream())
        with pytest.raises(LostWorkerError, match="the next one starts new workers"):
            batch(places)
        with pytest.raises(LostWorkerError, match="no worker runs"):
            batch(places)
        batch.draw_from(None)
    batch.draw_from(secret_stream())
    held = batch(places)[0]
    batch.draw_from(None)
    # negative control: this process has both
    assert bool(held.any()) is (workers == 0)


@pytest.mark.slow
def test_a_killed_worker_has_a_name_and_its_step_is_charged_once():
    step = PrivateStep(
        nn.Linear(6, 3),
        nn.CrossEntropyLoss(),
        num_examples=40,
        sample_rate=1.0,
        steps=4,
        noise_multiplier=1.0,
        delta=1e-3,
        learning_rate=0.1,
        clip_norm=1.0,
        seed=0,
    )
    with pytest.raises(LostWorkerError, match="ended before its rows were made"):
        step.step(step.batches(Same(Killed()), workers=2, start="fork"))
    assert len(step._account.ledger.entries) == 1
    step.step(step.batches(Same(Noisy()), workers=1, start="fork"))
    assert len(step._account.ledger.entries) == 2


def test_workers_are_refused_where_they_make_nothing_or_cannot_start():
    step = PrivateStep(
        nn.Linear(3, 2),
        nn.CrossEntropyLoss(),
        num_examples=40,
        sample_rate=0.5,
        steps=2,
        noise_multiplier=1.0,
        delta=1e-3,
        learning_rate=0.1,
    )
    with pytest.raises(ValueError, match="leave workers out"):
        step.batches((torch.zeros(40, 3), torch.zeros(40).long()), workers=1)
    with pytest.raises(ValueError, match="leave one of them out"):
        step.batches(lambda places: (places, places), workers=1, batched=True)
    with pytest.raises(ValueError, match="take start='fork'"):
        step.batches(lambda places: (places, places), workers=1, start="spawn")
    with pytest.raises(ValueError, match="count=-1 >= 1"):
        step.batches(lambda places: (places, places), workers=-1)
