"""The figures of random sparsification: against closed forms, brute force, and laws whose symmetry is known."""

import math

import numpy as np
import pytest
import torch

from simulations.inspection.clips import passes, unmasked
from simulations.inspection.sparsified import (
    DRAWS,
    asymmetry,
    deviations,
    keep,
    kept_in,
    mask_counts,
    of_independent,
    sparsified,
)
from simulations.inspection.subject import subject_of_run, subject_of_settings
from tests.simulations.support.runs import run_local, stopped_after

RS = {"method": "rs", "sparsity": 0.9, "sample_rate": 0.25, "rounds": 24, "clip_norm": 0.05}


@pytest.fixture(scope="module")
def subject():
    return subject_of_settings(RS | {"noise_multiplier": 1.0, "device": "cpu"})


@pytest.fixture(scope="module")
def found(subject):
    return sparsified(subject, subject.rows(100), (0.0, 0.5))


def test_noise_shrinks_with_the_coordinates(found):
    assert [row.sparsity for row in found.rows] == [0.0, 0.5, 0.9]
    for row in found.rows:
        assert row.noise == pytest.approx(row.expected_noise, abs=5 * max(row.noise_sd, 1e-6) + 0.01)
    assert found.rows[0].noise == 1.0


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


def test_without_a_clip_the_kept_coordinates_stay_as_they_are():
    loose = subject_of_settings(RS | {"clip_norm": 1e6, "noise_multiplier": 1.0, "device": "cpu"})
    rows = sparsified(loose, loose.rows(50), (0.5,)).rows
    assert [row.relaxed for row in rows] == pytest.approx([1.0, 1.0], rel=1e-5)


def test_a_symmetric_law_is_found_so_and_a_skewed_one_is_not():
    draws = np.random.default_rng(0)
    even = deviations(0.0, draws.standard_normal((4000, 8)), draws)
    assert even.asymmetry < even.chance_95 * 1.2
    odd = deviations(0.0, draws.exponential(size=(4000, 8)), draws)  # planted
    assert odd.asymmetry > 2 * odd.chance_95
    assert odd.skewness == pytest.approx(2, abs=0.6)
    assert asymmetry(np.array([-1.0, 1.0])) == 0


def test_counts_of_independent_masks():
    assert of_independent([0.5, 0.5]) == pytest.approx([0.25, 0.5, 0.25])
    assert of_independent([0.2, 0.0, 1.0]) == pytest.approx([0, 0.8, 0.2, 0])


def test_masks_of_a_schedule_are_independent(subject):
    counts = mask_counts(subject)
    assert (counts.masks, counts.ranking) == (6, "random")
    assert counts.mean == pytest.approx(sum(0.9 * e / 5 for e in range(6)), abs=1e-2)
    assert counts.distance < 0.03


def test_masks_that_stay_are_seen(subject, monkeypatch):
    """Planted: every epoch freezes the same coordinates."""
    first = torch.arange(subject.frame.size // 2)
    monkeypatch.setattr("simulations.inspection.sparsified.kept_in", lambda subject, round: first)
    counts = mask_counts(subject)
    assert counts.distance > 0.9
    assert counts.sd > 2 * counts.expected_sd


def test_ranked_masks_are_read_from_the_record(tmp_path):
    given = RS | {"ranking": "gradients", "rounds": 8, "sparsity": 0.5, "noise_multiplier": 50.0}
    run_local(tmp_path / "run", **given, record_updates=True)
    ranked = subject_of_run(str(tmp_path / "run"))
    counts = mask_counts(ranked)
    assert (counts.masks, counts.ranking) == (2, "gradients")
    assert len(kept_in(ranked, 5)) == math.ceil(ranked.frame.size / 2)
    run_local(tmp_path / "silent", **given)
    assert mask_counts(subject_of_run(str(tmp_path / "silent"))) is None


def test_only_the_epochs_so_far_are_counted(tmp_path):
    stopped_after(9, tmp_path / "run", **RS)
    counts = mask_counts(subject_of_run(str(tmp_path / "run")))
    assert counts.masks == 3
    assert counts.expected == pytest.approx(of_independent([0, 0.9 / 5, 0.9 * 2 / 5]), abs=1e-3)


def test_methods_without_random_masks_have_none_of_it():
    other = subject_of_settings({"method": "dpsgd", "noise_multiplier": 1.0, "device": "cpu"})
    assert sparsified(other, other.rows(8), (0.5,)) is None
