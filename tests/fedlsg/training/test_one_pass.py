"""Clients in one pass: each sum is its own client's, no bit of it depends on the others; planted
mistakes are seen.
"""

import math
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedlsg.gradients import check
from fedlsg.method import LocalTraining
from fedlsg.privacy import clip
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.training import one_pass
from fedlsg.training.client_round import clipped_batch_sum
from fedlsg.training.local_training import Drawn, StepInputs, fill
from fedlsg.training.one_pass import can_share, slot_of, sums_in_one_pass
from tests.fedlsg.support.step_oracle import CLIP_ONLY, EXACT, FRAMES, Problem, cnn, mlp, problem

LOCAL = LocalTraining(sample_rate=0.5, expected_batch=5.5)
SIZES = (3, 0, 11, 1, 4)
SLOTS = (5, 4, 8, 2, 4)
EVEN = (5, 5, 5, 5, 5)
"""The third client's batch does not fit. Even slots are summed by one product a block."""


def wide() -> nn.Module:
    """With a layer whose gradients are not formed for each example (ghost clipping)."""
    return nn.Sequential(
        nn.Linear(9, 130), nn.ReLU(), nn.Linear(130, 130), nn.ReLU(), nn.Linear(130, 3)
    )


def step(p: Problem, seed: int, size: int, mechanism: Mechanism = CLIP_ONLY) -> StepInputs:
    """One client's step on data of its own."""
    generator = torch.Generator().manual_seed(seed)
    dtype = p.inputs.dtype
    inputs = torch.randn(max(size, 1), 9, generator=generator, dtype=dtype) * 2
    targets = torch.randint(3, (max(size, 1),), generator=generator)
    return StepInputs(
        model=p.model,
        batch=lambda rows: (inputs[rows], targets[rows]),
        loss_fn=p.loss_fn,
        frame=p.frame,
        mechanism=mechanism,
        local=LOCAL,
        groups=lambda rows: [rows],
        num_examples=max(size, 1),
        draws=Drawn(positions=torch.arange(size)),
        scale=None,
        parameters=check(p.model, p.frame),
    )


def clients(
    p: Problem, sizes=SIZES, seeds=(0, 1, 2, 3, 4), mechanism: Mechanism = CLIP_ONLY
) -> list[StepInputs]:
    return [step(p, seed, size, mechanism) for seed, size in zip(seeds, sizes, strict=True)]


def totals(steps: list[StepInputs], slots=SLOTS) -> list[torch.Tensor | None]:
    return [drawn.total for drawn in sums_in_one_pass(steps, slots)]


def assert_own_sums(p: Problem, mechanism: Mechanism = CLIP_ONLY, slots=SLOTS) -> None:
    """Every client's sum is that of its own examples, and the one that does not fit is left to its
    own step.
    """
    steps = clients(p, mechanism=mechanism)
    found = totals(steps, slots)
    assert found[2] is None
    for x, total in zip(steps, found, strict=True):
        if total is not None:
            torch.testing.assert_close(total, clipped_batch_sum(x), **EXACT)
    assert found[1].shape == found[0].shape
    assert not found[1].any(), "an empty batch is a sum of zeros, to which noise is added"


def assert_independent(p: Problem, slots=SLOTS) -> None:
    """No bit of another client's sum changes with one client's rows or their number."""
    before = totals(clients(p), slots)
    for seeds, sizes in (
        ((9, 1, 2, 3, 4), SIZES),
        ((0, 1, 2, 3, 4), (2, 0, 11, 1, 4)),
        ((0, 1, 2, 3, 4), (0, 0, 11, 1, 4)),
    ):
        after = totals(clients(p, sizes, seeds), slots)
        for i in (1, 3, 4):
            assert torch.equal(before[i], after[i])
    assert not torch.equal(before[0], after[0])


@pytest.mark.thinned(45)
@pytest.mark.parametrize("make", [mlp, cnn, wide])
@pytest.mark.parametrize("name", ["dpsgd", "lsg", "rs", "core"])
@pytest.mark.parametrize("kind", ["joint", "per-block"])
@pytest.mark.parametrize("slots", [SLOTS, EVEN])
def test_a_sum_is_that_of_the_clients_own_examples(make, name, kind, slots):
    assert_own_sums(problem(*FRAMES[name], make=make), replace(CLIP_ONLY, clip=kind), slots)


@pytest.mark.parametrize("make", [mlp, cnn, wide])
@pytest.mark.parametrize("name", ["dpsgd", "lsg"])
@pytest.mark.parametrize("slots", [SLOTS, EVEN])
def test_no_bit_of_a_sum_depends_on_other_clients_rows(make, name, slots):
    assert_independent(problem(*FRAMES[name], make=make, dtype=torch.float32), slots)


@pytest.mark.parametrize("make", [mlp, wide])
@pytest.mark.parametrize(("slots", "last"), [((4, 4, 4, 4, 12), 9), ((5, 5, 5, 5, 1), 0)])
def test_no_bit_of_a_sum_depends_on_how_many_examples_the_last_client_has(make, slots, last):
    """All slots but the last are equal: only public numbers may decide how the sums are formed."""
    p = problem(*FRAMES["dpsgd"], make=make, dtype=torch.float32)
    before, after = (totals(clients(p, (3, 4, 2, 4, own)), slots) for own in (1, last))
    for one, other in zip(before[:4], after[:4], strict=True):
        assert one is not None
        assert torch.equal(one, other)


def test_sums_keep_their_digits_whatever_torch_may_round(monkeypatch):
    """A user may allow products in bfloat16: those of the clip's factors are none then."""
    p = problem(*FRAMES["dpsgd"], dtype=torch.float32)
    before = totals(clients(p), EVEN)
    monkeypatch.setattr(clip, "keeps_digits", lambda device: False)
    monkeypatch.setattr(clip, "_sums_of_slots", lambda *parts: 1 / 0)
    for one, other in zip(before, totals(clients(p), EVEN), strict=True):
        assert one is other is None or torch.allclose(one, other)


@pytest.mark.parametrize("make", [mlp, wide])
@pytest.mark.parametrize("slots", [SLOTS, EVEN])
def test_an_example_that_is_not_finite_changes_its_own_client_alone(make, slots):
    p = problem(*FRAMES["dpsgd"], make=make, dtype=torch.float32)
    steps = clients(p)
    before = totals(steps, slots)
    inputs, targets = steps[0].batch(torch.arange(3))
    inputs[1] = math.nan
    found = totals(
        [replace(steps[0], batch=lambda rows: (inputs[rows], targets[rows])), *steps[1:]], slots
    )
    assert torch.equal(found[4], before[4])
    assert found[0].isfinite().all()
    alone = clipped_batch_sum(replace(steps[0], draws=Drawn(positions=torch.tensor([0, 2]))))
    torch.testing.assert_close(found[0], alone)


def test_a_client_that_fails_is_left_to_its_own_step_and_changes_no_other():
    p = problem(*FRAMES["dpsgd"], dtype=torch.float32)
    steps = clients(p)
    before = totals(steps)
    for bad in (
        lambda rows: 1 / 0,
        lambda rows: (steps[0].batch(rows)[0], torch.full((len(rows),), 77)),
        lambda rows: sys.exit("this row"),
    ):
        found = totals([replace(steps[0], batch=bad), *steps[1:]])
        assert found[0] is None
        assert torch.equal(found[4], before[4])


def test_one_example_moves_everything_that_leaves_by_c_at_most():
    """Over all clients' sums together, with and without it, and in other clients' presence."""
    p = problem(*FRAMES["dpsgd"], make=wide, dtype=torch.float32)
    for mechanism in (
        Mechanism(kind="clip-only", clip_norm=1e-3),
        Mechanism(kind="clip-only", clip_norm=0.3),
    ):
        steps = clients(p, mechanism=mechanism)
        less = [replace(steps[0], draws=Drawn(positions=torch.tensor([0, 2]))), *steps[1:]]
        moved = [
            (a - b).double().square().sum()
            for a, b in zip(totals(steps), totals(less), strict=True)
            if a is not None and b is not None
        ]
        assert len(moved) == 4
        assert 0.1 * mechanism.clip_norm < sum(moved).sqrt() <= mechanism.clip_norm * (1 + 1e-4)


def test_slots_are_public_and_who_has_a_shape_of_its_own_shares_none():
    assert [slot_of(LocalTraining(sample_rate=rate), 20) for rate in (1.0, 0.5, 0.01)] == [
        20,
        15,
        2,
    ]
    assert slot_of(LocalTraining(shuffled=6, expected_batch=6.0), 20) == 6
    x = step(problem(*FRAMES["dpsgd"]), 0, 3)
    assert can_share(x)
    for change in ({"one_shape": True}, {"steps": 2}, {"multiplicity": 2}):
        assert not can_share(replace(x, local=replace(LOCAL, **change)))
    assert not can_share(replace(x, mechanism=Mechanism(kind="none")))


def others_rows(patch):
    """A run that begins one row late, so that a row of the next slot enters a client's sum."""
    honest = clip.clipped_sums
    patch.setattr(
        one_pass,
        "clipped_sums",
        lambda g, m, runs, slot: honest(
            g, m, [range(r.start, r.stop + 1) if r else r for r in runs]
        ),
    )


def counted_twice(patch):
    """Slots that overlap: an example is in two clients' sums."""
    honest = clip.clipped_sums
    patch.setattr(
        one_pass, "clipped_sums", lambda g, m, runs, slot: honest(g, m, [runs[0], *runs[:-1]])
    )


def by_position(patch):
    """Slots that are as large as the batches: rows change places with other clients' batches."""
    patch.setattr(one_pass, "fill", lambda batch, rows: fill(batch, rows if rows % 8 == 0 else 0))


@pytest.mark.parametrize("plant", [others_rows, counted_twice, by_position])
@pytest.mark.parametrize("slots", [SLOTS, EVEN])
def test_rows_of_other_clients_in_a_sum_are_caught(plant, slots, monkeypatch):
    p = problem(*FRAMES["dpsgd"])
    plant(monkeypatch)
    with pytest.raises((AssertionError, IndexError)):
        assert_own_sums(p, slots=slots)


def test_a_sum_over_all_rows_before_it_is_split_is_caught(monkeypatch):
    """Negative control: where rows of one client decide about the others' (a NaN that is replaced
    for all).
    """
    p = problem(*FRAMES["dpsgd"], dtype=torch.float32)
    monkeypatch.setattr(
        one_pass,
        "units_of",
        lambda x, i, t, n: [g + g.sum() * 1e-6 for g in _honest_units(x, i, t, n)],
    )
    for slots in (SLOTS, EVEN):
        with pytest.raises(AssertionError):
            assert_independent(p, slots)


_honest_units = one_pass.units_of
