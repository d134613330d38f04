"""What clients draw next to batches and noise: secret for each, and nothing of it outside."""

import random

import numpy as np
import torch

from fedlsg.simulations.client import drawing
from fedlsg.simulations.client.drawing import draws, kept_draws
from tests.simulations.support.runs import plan_at


def state():
    return random.getstate()[1], np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def drawn_by_two(base):
    """What two clients draw, whose code seeds all generators itself; and where they leave the
    generators.
    """
    before, found = state(), []
    with kept_draws("cpu"):
        for client in (0, 1):
            with draws(base, client, round=1):
                found.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
                random.seed(0), np.random.seed(0), torch.manual_seed(0)
    return found, state() == before


def test_each_client_has_secret_draws_and_the_generators_outside_are_as_before(tmp_path):
    base = plan_at(tmp_path / "run", reproducible=False)[0]
    (found, kept), (again, _) = drawn_by_two(base), drawn_by_two(base)
    assert kept
    assert all(len(set(numbers)) == 4 for numbers in zip(*found, *again, strict=True))
    assert drawing._RESTORED_OUTSIDE == []


def test_a_client_that_goes_on_with_the_draws_of_another_is_caught(tmp_path, monkeypatch):
    """Negative control: without a seed of its own, a client draws what the code of the one before
    it decided.
    """
    base = plan_at(tmp_path / "run", reproducible=False)[0]
    monkeypatch.setattr(drawing, "seed_draws", lambda seed, device: None)
    assert drawn_by_two(base)[0][1] == drawn_by_two(base)[0][1]


def test_reproducible_draws_are_the_same_inside_and_outside_of_a_delivery(tmp_path):
    base = plan_at(tmp_path / "run", reproducible=True)[0]
    with draws(base, 1, round=3):
        alone = torch.rand(5)
    with kept_draws("cpu"), draws(base, 1, round=3):
        assert torch.equal(torch.rand(5), alone)
