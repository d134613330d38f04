"""Canaries against the shipped client: what they are, and that nothing but the backward pass is replaced."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import fedlsg.training.client
import strategies
from fedlsg.attacks.audit.setting import spread, step_weights
from fedlsg.attacks.audit.shipped import injected, make_canaries, release, shares
from fedlsg.attacks.audit.unit_mode import along, log_ratios
from fedlsg.method import Schedule, make_frame
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.randomness import reproducible_stream
from fedlsg.training.client import LocalTraining, allows_ghost_clipping
from tests.fedlsg.support.audit_setting import setting

GENERATOR = torch.Generator


def canaries(made, count=60):
    return make_canaries(made, count, GENERATOR().manual_seed(0))


def sent(made, rows, **changes):
    local = LocalTraining(**{"sample_rate": 1.0, **changes})
    noiseless = Mechanism(kind="clip-only", clip_norm=made.mechanism.clip_norm, clip=made.mechanism.clip)
    streams = {"sampler": reproducible_stream(0, "s"), "noise": reproducible_stream(0, "n")}
    return release(rows, model=made.model, frame=made.frame, mechanism=noiseless, local=local, **streams)


@pytest.mark.parametrize("name", ["lsg", "rgp", "rs", "dpsgd"])
def test_clipped_canaries_are_orthogonal_of_norm_c_with_energy_in_every_block(name):
    made = setting(name, clip_norm=0.5)
    found = canaries(made).clipped.double()
    assert_close(found @ found.T / 0.25, torch.eye(60, dtype=torch.float64), atol=1e-5, rtol=0)
    for block in found.split([b.kept for b in made.frame.blocks], dim=1):
        assert block.norm(dim=1).min() > 0.05


def test_a_canary_adds_to_the_sum_what_it_says():
    made = setting(clip_norm=0.5, classifier_clip_weight=3.0)
    found = canaries(made)
    assert_close(sent(made, found.gradients[:5]), found.clipped[:5].sum(0), atol=1e-6, rtol=1e-5)


def test_a_per_block_clip_lets_more_of_a_canary_pass():
    """Nearly the root of the number of blocks: the energies are nearly equal."""
    joint, apart = setting(), setting(clip="per-block")
    moved = sent(apart, canaries(joint).gradients[:1]).norm()
    assert math.sqrt(5) * 0.9 < moved <= math.sqrt(5)


def test_the_shares_by_hand():
    """Eight rows in blocks of 2 and 100: a quarter is all that fits into the first."""
    assert shares([2, 100], 8) == pytest.approx([0.25, 0.75])
    assert shares([50, 50], 10) == pytest.approx([0.5, 0.5])


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6), data=st.data())
def test_shares_fill_the_energy_within_their_caps(sizes, data):
    count = data.draw(st.integers(1, sum(sizes)))
    found = shares(sizes, count)
    assert sum(found) == pytest.approx(1.0)
    assert all(0 <= share <= size / count + 1e-9 for share, size in zip(found, sizes, strict=True))


def test_the_backward_pass_comes_back():
    before = fedlsg.training.client.per_example_gradients
    with injected():
        assert fedlsg.training.client.per_example_gradients is not before
    assert fedlsg.training.client.per_example_gradients is before


def test_canaries_take_the_place_of_large_dense_weights_too():
    """Whose gradients the client would hold back, and so never ask for example by example."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 100), nn.Linear(100, 2))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    frame = make_frame(
        strategies.recipe("dpsgd"), weights, {}, carried=(), round=1, updates=0, schedule=Schedule(rounds=1), seed=0,
        classifier="1",
    )  # fmt: skip
    assert allows_ghost_clipping(frame)
    row = torch.randn(1, frame.kept)
    found = release(
        row, model=model, frame=frame, mechanism=Mechanism(kind="clip-only", clip_norm=0.5),
        local=LocalTraining(sample_rate=1.0), sampler=reproducible_stream(0), noise=reproducible_stream(1),
    )  # fmt: skip
    assert_close(found, 0.5 * row[0] / row.norm())


def test_step_weights_are_what_the_client_adds_up():
    made = setting()
    row = canaries(made).gradients[:1]
    local = {"steps": 3, "momentum": 0.5, "learning_rate": 0.1}
    total = sum(step_weights(LocalTraining(**local)))
    assert_close(sent(made, row, **local), total * sent(made, row), atol=1e-6, rtol=1e-5)


def test_log_ratio_by_hand():
    """One round, q = 1/2, s = 2, the output on the canary: log(1/2 + 1/2 e^(4 (1 - 1/2)))."""
    clipped = torch.tensor([[2.0, 0.0]])
    y = along(torch.tensor([[2.0, 7.0]]), clipped)
    assert_close(y, torch.ones(1, 1, dtype=torch.float64))
    found = log_ratios(y, clipped.norm(dim=1), noise_std=1.0, sample_rate=0.5)
    assert_close(found, torch.tensor([math.log(0.5 + 0.5 * math.exp(2.0))], dtype=torch.float64))
    assert log_ratios(y, clipped.norm(dim=1), noise_std=1.0, sample_rate=1.0).item() == pytest.approx(2.0)


@given(count=st.integers(1, 3000), kept=st.integers(2, 5000))
def test_clients_hold_all_canaries(count, kept):
    found = spread(count, kept)
    assert sum(found) == count
    assert max(found) <= max(1, kept // 2)
    assert max(found) - min(found) <= 1


def test_refuses():
    made = setting()
    with pytest.raises(ValueError, match="kept coordinates"):
        canaries(made, made.frame.kept + 1)
    with pytest.raises(ValueError, match="does not clip"):
        make_canaries(replace(made, mechanism=Mechanism(kind="noise-only")), 3, GENERATOR())
