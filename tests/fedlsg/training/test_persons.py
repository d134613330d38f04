"""Persons in place of examples: the naive loop, and that a person moves the sum by C at most."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedlsg.method import LocalTraining
from fedlsg.privacy import ShuffledBatches
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.randomness import reproducible_stream, secret_stream
from fedlsg.training import client_round
from fedlsg.training.persons import Persons
from tests.fedlsg.support.step_oracle import (
    CLIP_ONLY,
    EXACT,
    EXAMPLES,
    FRAMES,
    NOISY,
    Problem,
    clipped,
    cnn,
    dense_gradients,
    mlp,
    problem,
    project_and_keep,
)

PERSON = torch.tensor([0, 1, 0, 2, 0, 3, 1, 0, 2, 4, 0])
"""Of the problem's 11 rows: the first person has five, the last ones one."""
CLIP = 0.3


def naive_sum(p: Problem, person: Tensor, mechanism: Mechanism, drawn, gradient="mean") -> Tensor:
    """Each person's gradients are added up row by row, and clipped once."""
    total = torch.zeros(p.frame.kept, dtype=torch.float64)
    for one in drawn:
        rows = (person == one).nonzero().squeeze(1).tolist()
        own = sum(project_and_keep(dense_gradients(p, p.model, i), p.frame) for i in rows)
        own = own / len(rows) if gradient == "mean" else own
        total += clipped(own, mechanism, p.frame)
    return total


def step(p: Problem, person: Tensor = PERSON, *, local=None, mechanism=CLIP_ONLY, **persons):
    who = Persons(person, **persons)
    local = LocalTraining() if local is None else local
    return p.step(mechanism, local, persons=who, num_examples=who.count)


@pytest.mark.thinned(43)
@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize(
    "mechanism", [CLIP_ONLY, replace(CLIP_ONLY, clip="per-block")], ids=["joint", "block"]
)
def test_a_step_equals_the_naive_loop_over_persons(make, name, mechanism):
    p = problem(*FRAMES[name], make=make)
    local = LocalTraining(sample_rate=0.6)
    joins = reproducible_stream(0, "sampler").bernoulli(5, 0.6).nonzero().squeeze(1).tolist()
    assert 1 < len(joins) < 5
    for gradient in ("mean", "sum"):
        wanted = naive_sum(p, PERSON, mechanism, joins, gradient)
        got = step(p, local=local, mechanism=mechanism, gradient=gradient)
        torch.testing.assert_close(got, wanted, **EXACT)


@pytest.mark.parametrize("size", [1, 2, 3, 256])
@pytest.mark.parametrize("isolation", ["checked", "isolated", "rows"])
def test_passes_of_any_size_and_level_give_the_same_sum(size, isolation):
    """A person with more rows than a pass holds is in several."""
    p = problem()
    local = LocalTraining(microbatch_size=size, isolation=isolation)
    wanted = naive_sum(p, PERSON, CLIP_ONLY, range(5))
    torch.testing.assert_close(step(p, local=local), wanted, **EXACT)


def test_rows_of_several_shapes_and_in_any_order_are_of_their_person():
    p = problem()

    def groups(positions: Tensor) -> list[Tensor]:
        own = positions.sort(descending=True).values
        return [own[own % 2 == 1], own[own % 2 == 0]]

    who = Persons(PERSON)
    got = p.step(
        CLIP_ONLY,
        LocalTraining(microbatch_size=2),
        persons=who,
        num_examples=5,
        groups=groups,
    )
    torch.testing.assert_close(got, naive_sum(p, PERSON, CLIP_ONLY, range(5)), **EXACT)


def test_copies_of_a_row_are_averaged_before_its_person():
    """Copies come one after the other, and differ."""
    p, changed = problem(), problem()
    changed.inputs = p.inputs * 1.5

    class Twice(Problem):
        def batch(self, positions: Tensor) -> tuple[Tensor, Tensor]:
            made = torch.stack([p.inputs[positions], changed.inputs[positions]], 1).flatten(0, 1)
            return made, self.targets[positions].repeat_interleave(2)

    def both(i: int) -> Tensor:
        found = [project_and_keep(dense_gradients(q, q.model, i), q.frame) for q in (p, changed)]
        return sum(found) / 2

    wanted = torch.zeros(p.frame.kept, dtype=torch.float64)
    for one in range(5):
        rows = (one == PERSON).nonzero().squeeze(1).tolist()
        wanted += clipped(sum(map(both, rows)) / len(rows), CLIP_ONLY, p.frame)
    twice = Twice(**vars(p))
    torch.testing.assert_close(step(twice, local=LocalTraining(multiplicity=2)), wanted, **EXACT)


def without(p: Problem, person: Tensor, one: int) -> tuple[Problem, Tensor]:
    """The neighbouring data: without all rows of a person."""
    left = person != one
    rest = person[left]
    made = replace(p, inputs=p.inputs[left], targets=p.targets[left])
    return made, rest - (rest > one).long()


def most_moved(p: Problem, person: Tensor, **settings) -> float:
    """How far the sum moves when a person leaves, at most, over C."""
    whole = step(p, person, **settings)
    return max(
        float((whole - step(*without(p, person, one), **settings)).norm()) / CLIP
        for one in range(int(person.max()) + 1)
    )


def extreme(dtype=torch.float64) -> Problem:
    """Rows whose gradients are far above C."""
    p = problem(dtype=dtype)
    p.inputs = p.inputs * 100
    return p


@pytest.mark.parametrize("gradient", ["mean", "sum"])
@pytest.mark.parametrize("most_rows", [0, 1, 3])
@pytest.mark.parametrize("size", [2, 256])
def test_a_person_moves_the_sum_by_c_at_most(gradient, most_rows, size):
    local = LocalTraining(microbatch_size=size)
    settings = {"gradient": gradient, "most_rows": most_rows, "local": local}
    if most_rows == 0:
        assert 0.9 < most_moved(extreme(), PERSON, **settings) <= 1 + 1e-6
    # with draws, the rows of the others may be other ones: the person alone, against nobody
    alone = torch.zeros(EXAMPLES, dtype=torch.int64)
    assert step(extreme(), alone, **settings).norm() <= CLIP * (1 + 1e-6)


def test_planted_a_clip_of_rows_before_the_sum_is_seen(monkeypatch):
    """Each row is clipped to C, and the rows of a person are added up: five of them move it by
    more.
    """

    def rows_alone(x, inputs, targets, rows):
        units = honest(x, inputs, targets, rows)
        norms = sum(u.flatten(1).norm(dim=1) ** 2 for u in units).sqrt()
        return [u * (CLIP / norms).clamp(max=1).view(-1, *[1] * (u.ndim - 1)) for u in units]

    honest = client_round.row_gradients
    monkeypatch.setattr(client_round, "row_gradients", rows_alone)
    monkeypatch.setattr(
        client_round,
        "clipped_sum",
        lambda units, mechanism, wide: torch.cat([u.double().sum(0).flatten() for u in units]),
    )
    assert most_moved(extreme(), PERSON, gradient="sum") > 1.5


def test_a_person_without_a_number_adds_nothing_and_spoils_nobody():
    p = problem()
    p.inputs[2] = torch.inf  # of the first person
    left = [1, 2, 3, 4]
    torch.testing.assert_close(step(p), naive_sum(p, PERSON, CLIP_ONLY, left), **EXACT)


def cancelling() -> tuple[Problem, Tensor]:
    """Persons with two rows whose huge gradients cancel, in float32."""
    p = problem(dtype=torch.float32)
    inputs = p.inputs.repeat_interleave(2, 0)
    signs = torch.tensor([1e7, -1e7]).repeat(EXAMPLES)
    p = replace(p, inputs=inputs, targets=signs, loss_fn=lambda o, t: o.sum(1) * t)
    return p, torch.arange(EXAMPLES).repeat_interleave(2)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("size", [2, 7, 256])
@pytest.mark.parametrize("isolation", ["checked", "isolated", "rows"])
def test_what_is_left_of_rows_that_cancel_does_not_depend_on_others(size, isolation):
    """The clip does not scale it down. So nobody else is in a person's passes."""
    (p, person), local = cancelling(), LocalTraining(microbatch_size=size, isolation=isolation)
    whole = step(p, person, local=local)
    for one in range(0, EXAMPLES, 5):
        alone = replace(p, inputs=p.inputs[person == one], targets=p.targets[person == one])
        own = step(alone, torch.zeros(2, dtype=torch.int64), local=local)
        moved = whole - step(*without(p, person, one), local=local)
        torch.testing.assert_close(moved, own, rtol=0, atol=1e-6 * CLIP)


def test_planted_passes_that_persons_share_are_seen(monkeypatch):
    """A row's place in a pass decides how it is rounded: what is left of others moves as well."""

    def shared(x, inputs, targets, rows):
        places = [int((p.inputs == row).all(1).nonzero()[0]) for row in inputs]
        both = torch.tensor(
            [2 * (at // 2) + int(t < 0) for at, t in zip(places, targets, strict=True)]
        )
        return [g[both] for g in honest(x, p.inputs, p.targets, len(p.inputs))]

    honest = client_round.row_gradients
    monkeypatch.setattr(client_round, "row_gradients", shared)
    p, person = cancelling()
    whole = step(p, person)
    p, person = without(p, person, 0)
    assert (whole - step(p, person)).norm() > 2 * CLIP


def test_rows_beyond_the_most_are_drawn_within_the_person():
    who = Persons(PERSON, most_rows=2)
    stream, seen = secret_stream(), []
    for _ in range(200):
        first, second, third = who.rows_of(torch.tensor([0, 2, 4]), stream)
        assert PERSON[first].tolist() == [0, 0]
        assert (second.tolist(), third.tolist()) == ([3, 8], [9])
        assert first[0] < first[1]
        seen += first.tolist()
    counts = torch.tensor(seen).bincount(minlength=EXAMPLES)[[0, 2, 4, 7, 10]]
    assert counts.sum() == 400
    assert counts.min() > 50  # 80 expected of each
    (whole,) = Persons(PERSON).rows_of(torch.tensor([0]), stream)
    assert whole.tolist() == [0, 2, 4, 7, 10]


def test_every_step_draws_persons_anew_and_moves_the_weights_as_examples_do():
    """One row each: persons are examples, also over several local steps with momentum and noise."""
    p = problem()
    local = LocalTraining(
        steps=3, sample_rate=0.5, learning_rate=0.3, momentum=0.5, expected_batch=5.5
    )
    got = step(p, torch.arange(EXAMPLES), local=local, mechanism=NOISY)
    torch.testing.assert_close(got, p.step(NOISY, local), rtol=1e-9, atol=1e-9)


def test_an_empty_batch_is_noise_alone():
    p = problem()
    got = step(p, local=LocalTraining(sample_rate=1e-12), mechanism=NOISY)
    assert got.norm() > 0
    assert step(p, local=LocalTraining(sample_rate=1e-12)).norm() == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_examples": EXAMPLES}, "count the 5 persons"),
        ({"mechanism": Mechanism(kind="none")}, "clips persons"),
        (
            {
                "sampler": ShuffledBatches(
                    num_examples=5, batch_size=2, first=0, order=lambda _: secret_stream()
                ),
                "local": LocalTraining(shuffled=2, expected_batch=2.0),
            },
            "Poisson batches",
        ),
    ],
)
def test_what_is_no_step_of_persons_is_refused_before_the_charge(changes, said):
    charged: list[int] = []
    settings = {"mechanism": CLIP_ONLY, "num_examples": 5, "persons": Persons(PERSON), **changes}
    with pytest.raises(ValueError, match=said):
        problem().step(**settings, charge=lambda: charged.append(1))
    assert not charged


@pytest.mark.parametrize(
    "person", [torch.tensor([0, 2]), torch.tensor([0.0]), torch.zeros(0, dtype=torch.int64)]
)
def test_numbers_that_leave_a_person_without_rows_are_refused(person):
    with pytest.raises(ValueError, match="expected"):
        Persons(person)
