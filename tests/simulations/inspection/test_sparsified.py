"""The figures of random sparsification: against closed forms, brute force, and laws whose symmetry is known."""

import math

import numpy as np
import pytest
import torch

from simulations.inspection.clips import passes, unmasked
from simulations.inspection.sparsified import (
    DRAWS,
    keep,
    sparsified,
)
from simulations.inspection.subject import subject_of_settings

RS = {"method": "rs", "sparsity": 0.9, "sample_rate": 0.25, "rounds": 24, "clip_norm": 0.05}


@pytest.fixture(scope="module")
def subject():
    return subject_of_settings(RS | {"noise_multiplier": 1.0, "device": "cpu"})


@pytest.fixture(scope="module")
def found(subject):
    return sparsified(subject, subject.rows(100), (0.0, 0.5))


def test_the_clipped_gradient_is_that_of_a_plain_loop(subject, found):
    """Every example clipped on its own, under the masks that were drawn."""
    rows, d = subject.rows(100), subject.frame.size
    g = torch.cat([torch.cat(blocks, 1) for blocks in passes(subject, unmasked(subject.frame), rows)]).double()
    from fedlsg.randomness import public_generator

    generator = public_generator(subject.state.seed, "inspect", "sparsified")
    drawn = [keep(d, p, generator).double() for p in (0.0, 0.5, 0.9) for _ in range(DRAWS)][DRAWS : 2 * DRAWS]

    def clipped(mask):
        total = torch.zeros(d, dtype=torch.float64)
        for one in g:
            cut = one * mask
            total += cut * min(1.0, 0.05 / float(cut.norm()))
        return total / len(g)

    whole = clipped(torch.ones(d, dtype=torch.float64))
    relaxed = [float(clipped(m).norm() / (whole * m).norm()) for m in drawn]
    kept = [float(clipped(m).norm() / whole.norm()) for m in drawn]
    assert found.rows[1].relaxed == pytest.approx(np.mean(relaxed), rel=1e-4)
    assert found.rows[1].kept == pytest.approx(np.mean(kept), rel=1e-4)
    assert 1 < found.rows[1].relaxed < 1.2 / math.sqrt(0.5)
