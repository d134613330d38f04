"""Canary examples: nothing but the canaries changes, and their images are what their kind says."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from simulations.audit.subject import audited_settings
from simulations.audit.training import (
    DRAWN,
    KINDS,
    choose_canaries,
    settings_of,
    with_canaries,
)
from simulations.plan.plan import Plan, make_plan
from simulations.workloads.base.split import Split
from tests.simulations.support.runs import SMALL

SETTINGS = {key: value for key, value in SMALL.items() if key != "reproducible"}


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A run on digits that was never started."""
    return make_plan(settings_of(audited_settings(SETTINGS).subject.base.settings, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_everybody_else_stays_where_they_are(plan, kind):
    inserted = choose_canaries(plan, 100, 0)
    made = with_canaries(plan, inserted, kind)
    everything = torch.arange(len(plan.workload.train))
    before, after = (one.workload.train.batch(everything) for one in (plan, made))
    others = ~torch.isin(everything, inserted.rows)
    assert_close(after[0][others], before[0][others], rtol=0, atol=0)
    assert_close(after[1][others], before[1][others])
    gone = torch.cat(list(plan.parts))[~torch.isin(torch.cat(list(plan.parts)), torch.cat(list(made.parts)))]
    assert torch.equal(gone.sort().values, inserted.rows[~inserted.included])
    assert made.divisor == plan.divisor
    assert all(torch.isin(row, plan.parts[client]) for row, client in zip(inserted.rows, inserted.clients, strict=True))
    if kind == "mislabelled":
        assert_close(after[0], before[0], rtol=0, atol=0)
        assert bool((after[1] != before[1])[inserted.rows].all())
    else:
        assert bool((after[0] != before[0])[inserted.rows].flatten(1).any(1).all())


@pytest.mark.parametrize("kind", DRAWN)
def test_images_are_distinct_in_the_range_of_the_data_and_repeat(kind):
    images = torch.randn(50, 3, 8, 8, generator=torch.Generator().manual_seed(0)) - 0.3
    first, again, other = (DRAWN[kind](images, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert first.shape == images.shape
    assert_close(first, again, rtol=0, atol=0)
    assert bool((first != other).any())
    assert images.min() <= first.min() < first.max() <= images.max()
    assert len(first.unique(dim=0)) > 30


def numbers() -> Split:
    """Six examples that are their own row."""
    stored = np.arange(6, dtype=np.float32).reshape(6, 1, 1, 1)
    return Split(inputs=stored, labels=torch.zeros(6, dtype=torch.int64), prepare=lambda rows: torch.from_numpy(rows))
