"""A transform of a user's own must make each row from that row alone: the model's check starts after it."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import fedlsg
from simulations.workloads import Options
from simulations.workloads.base.workload import Request, silent

GENERATOR = torch.Generator().manual_seed(0)
INPUTS, TARGETS = torch.randn(20, 4, generator=GENERATOR), torch.arange(20) % 2
WORDS = [f"word {'a ' * (n % 5)}" for n in range(20)]
OWN_GENERATOR = np.random.default_rng(0)


def loaded(transform, inputs=INPUTS):
    workload = fedlsg.Workload(
        model=lambda: nn.Linear(4, 2), train=(inputs, TARGETS), test=(inputs, TARGETS), loss=nn.CrossEntropyLoss(),
        transform=transform,
    )  # fmt: skip
    request = Request(data_dir=None, cache_dir=None, options=Options(), progress=silent, public_only=False)
    return workload.load(request)


def tokens(texts, length):
    return torch.tensor([[ord(c) for c in text.ljust(length)[:length]] for text in texts])


MIXING = {
    "mean of the batch": (lambda x: x - x.mean(0), INPUTS),
    "running sum": (lambda x: x.cumsum(0), INPUTS),
    "size of the batch": (lambda x: x / len(x), INPUTS),
    "neighbour, with noise of its own": (lambda x: x + 0.1 * x.roll(1, 0) + torch.randn(x.shape), INPUTS),
    "noise of numpy": (lambda x: (x - x.max(0).values) + torch.as_tensor(np.random.rand(*x.shape)), INPUTS),
    "texts by the longest": (lambda texts: tokens(texts, max(map(len, texts))), WORDS),
    "numbers by what occurs": (lambda texts: torch.tensor([[sorted(set(texts)).index(t)] for t in texts]), WORDS),
}


@pytest.mark.parametrize("case", MIXING)
def test_a_transform_that_mixes_rows_is_refused(case):
    transform, inputs = MIXING[case]
    with pytest.raises(ValueError, match="transform mixes rows"):
        loaded(transform, inputs)


HONEST = {
    "constants": (lambda x: (x - 0.3) / 2, INPUTS),
    "of each row": (lambda x: x / x.norm(dim=1, keepdim=True), INPUTS),
    "by name": (lambda x: {"x": x, "mask": x > 0}, INPUTS),
    "random signs": (lambda x: x * torch.randn(len(x), 1).sign(), INPUTS),
    "random shifts": (lambda x: torch.stack([row.roll(random.randrange(4)) for row in x]), INPUTS),
    "a generator of its own": (lambda x: x + torch.as_tensor(OWN_GENERATOR.random(x.shape)), INPUTS),
    "texts of one length": (lambda texts: tokens(texts, 9), WORDS),
}


@pytest.mark.parametrize("case", HONEST)
def test_a_transform_of_each_row_passes_and_moves_no_generator(case):
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    transform, inputs = HONEST[case]
    loaded(transform, inputs)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert before[2] == np.random.get_state()[1].tolist()


def test_a_transform_without_one_row_an_example_is_refused():
    with pytest.raises(ValueError, match="give one row an example"):
        loaded(lambda x: x.sum(0))


def test_an_empty_batch_calls_no_transform():
    """It would fail, and so tell that a Poisson batch was empty."""
    train = loaded(lambda x: torch.stack([row * 2 for row in x])).train
    inputs, targets = train.batch(torch.zeros(0, dtype=torch.int64))
    assert (len(inputs), len(targets)) == (0, 0)
