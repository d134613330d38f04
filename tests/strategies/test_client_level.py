"""Client-level privacy in every kind of coordinates: what one client moves, the noise, and planted
mistakes.
"""

import pytest
import torch

import fedlsg.training.client_level
from fedlsg.privacy.mechanism import add_noise
from fedlsg.randomness import reproducible_stream
from fedlsg.training.client_level import clipped_update, norm_of
from tests.strategies.client_level import (
    BATCH,
    noise_defects,
    released,
    sensitivity_defects,
    updates,
)
from tests.strategies.contract import Case, Subject, mlp, subject

CASES = (
    Case("dpsgd"),
    Case("dpsgd", {"clip": "per-block"}),
    Case("lsg"),
    Case("rgp"),
    Case("rs"),
    Case("probe"),
    Case("lsg-probe"),
    Case("ffa-lora"),
    Case("fed-sb"),
    Case("lsg-lora"),
    Case("dp-ssgd", {"prune": "random", "drop": "random"}),
    Case("lsg", {"norms_clip_weight": 3.0, "classifier_clip_weight": 0.25}),
)


def names(case: Case) -> str:
    return "-".join([case.name, *map(str, case.settings.values())])


@pytest.fixture(scope="module")
def dense() -> Subject:
    return subject(Case("dpsgd"), mlp)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("case", CASES, ids=names)
def test_one_client_moves_the_sum_by_the_clip_norm_at_most(case):
    assert sensitivity_defects(subject(case, mlp)) == []


@pytest.mark.parametrize("case", CASES[:6], ids=names)
def test_a_round_without_clients_is_noise_on_every_kept_coordinate(case):
    assert noise_defects(subject(case, mlp)) == []


def test_an_update_that_is_no_number_counts_as_zero(dense):
    some = updates(dense, 0)
    assert not all(bool(update.isfinite().all()) for update in some)
    assert released(dense, some).isfinite().all()


def test_a_codec_that_enlarges_an_update_is_clipped_again(dense):
    large = torch.full((dense.frame.kept,), 1e6)
    clipped = clipped_update(
        large, frame=dense.frame, mechanism=dense.mechanism, expected_batch=BATCH
    )
    assert float(clipped.norm()) <= dense.mechanism.clip_norm
    assert norm_of(large, expected_batch=BATCH) > 1e5


def planted_no_clip(values, *, expected_batch, **_):
    return (values / expected_batch).double().nan_to_num()


def planted_clip_of_each_block(values, *, frame, mechanism, expected_batch):
    blocks = (
        (values / expected_batch)
        .double()
        .nan_to_num()
        .split([block.kept for block in frame.blocks])
    )
    return torch.cat(
        [b * min(1.0, mechanism.clip_norm / max(float(b.norm()), 1e-300)) for b in blocks]
    )


def planted_divisor_of_the_data(some, **given):
    total, clip_norm = true_release(some, **given)
    return total / max(len(some), 1) * 3, clip_norm


true_release = fedlsg.training.client_level.release_round


@pytest.mark.parametrize(
    "planted", [planted_no_clip, planted_clip_of_each_block], ids=lambda f: f.__name__
)
def test_a_planted_clip_is_seen(planted, dense, monkeypatch):
    monkeypatch.setattr(fedlsg.training.client_level, "clipped_update", planted)
    assert sensitivity_defects(dense)


def test_a_divisor_taken_from_the_round_is_seen(dense, monkeypatch):
    monkeypatch.setattr(fedlsg.training.client_level, "release_round", planted_divisor_of_the_data)
    assert sensitivity_defects(dense)


def halved(total, mechanism, noise):
    return total + (add_noise(total, mechanism, noise) - total) / 2


def skipped(total, mechanism, noise):
    return add_noise(total, mechanism, noise) if total.any() else total


def reused(total, mechanism, noise):
    return add_noise(total, mechanism, reproducible_stream(0))


@pytest.mark.parametrize("planted", [halved, skipped, reused], ids=lambda f: f.__name__)
def test_planted_noise_is_seen(planted, dense, monkeypatch):
    monkeypatch.setattr(fedlsg.training.client_level, "add_noise", planted)
    assert noise_defects(dense)
