"""A base with a client's own data: what it has in common with the others' is the same, the rest it does not know."""

import pytest
import torch

from simulations import workloads
from simulations.plan.base import Own
from simulations.plan.plan import prepare
from simulations.settings.settings import from_mapping
from simulations.workloads import LoadedWorkload, Split

SETTINGS = {"clients": 3, "rounds": 4, "sample_rate": 0.1, "noise_multiplier": 2.0}


def own_rows(count: int):
    def read(workload: LoadedWorkload) -> Split:
        assert len(workload.train) == 0  # of the workload, what is public alone
        return workloads.load("digits").train.pick(torch.arange(count))

    return read


def test_all_rows_are_the_clients_own():
    base = prepare(from_mapping(SETTINGS), own=Own(client=2, read=own_rows(70)))
    assert base.parts[2].tolist() == list(range(70))
    assert len(base.workload.train) == 70
    assert base.local.expected_batch == pytest.approx(7.0)


def test_the_announced_expected_batch_makes_the_divisor():
    """Of a federation of other sizes: the client's own says nothing about it."""
    base = prepare(from_mapping(SETTINGS), own=Own(client=0, read=own_rows(70), expected_batch=40.0))
    assert (base.local.expected_batch, base.divisor) == (40.0, 120.0)


@pytest.mark.parametrize("question", [lambda b: b.sizes, lambda b: b.steps, lambda b: b.parts[0]])
def test_what_others_hold_is_refused_not_guessed(question):
    base = prepare(from_mapping(SETTINGS), own=Own(client=2, read=own_rows(70)))
    with pytest.raises(LookupError, match=r"own data only|data of the others"):
        question(base)
