"""The group prior: members agree, order does not count, and without weight they are plain restarts."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedlsg.attacks.inversion.group import Group, consensus, disagreement, register
from fedlsg.attacks.inversion.matching import ATTACKS, Matching, match
from fedlsg.attacks.inversion.metrics import psnr
from fedlsg.attacks.inversion.minimize import Box, adam
from fedlsg.attacks.inversion.prior import Prior, blind_guess
from fedlsg.attacks.observation import Guess, Knowledge
from tests.fedlsg.support.observed import digits, method, mlp, observe

PRIOR = Prior(shape=(1, 8, 8), mean=digits(500, 500)[0].mean(0))
QUICK = replace(ATTACKS["inverting-gradients"], evaluations=80, restarts=3, group=1.0)
seeds, sizes = st.integers(0, 2**31), st.integers(1, 4)


def images(members: int, batch: int, seed: int, side: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(members, batch, 2, side, side, generator=generator, dtype=torch.float64)


@given(members=sizes, batch=sizes, seed=seeds)
def test_equal_members_agree_with_no_penalty(members, batch, seed):
    one = images(1, batch, seed)
    equal = one.repeat(members, 1, 1, 1, 1)
    assert torch.equal(register(equal), equal)
    torch.testing.assert_close(consensus(equal), one[0])
    assert disagreement(equal) < 1e-30


@given(members=sizes, batch=sizes, seed=seeds)
def test_the_order_of_members_does_not_count(members, batch, seed):
    x = images(members, batch, seed)
    order = torch.randperm(members, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(consensus(x[order]), consensus(x))
    torch.testing.assert_close(disagreement(x[order]), disagreement(x))


def test_a_disagreement_by_hand():
    """Two members of one image of four pixels, a dot of 1 or of 3 at one place: E has 2 there, R is (1 + 1) / 4."""
    x = torch.zeros(2, 1, 1, 2, 2, dtype=torch.float64)
    x[0, 0, 0, 0, 0], x[1, 0, 0, 0, 0] = 1.0, 3.0
    assert consensus(x).flatten().tolist() == [2.0, 0.0, 0.0, 0.0]
    assert disagreement(x).item() == 0.5
    assert disagreement(x[:1]).item() == 0.0


def test_a_shifted_member_is_moved_onto_the_others():
    """Without registration the mean of the same image at two places is blurred: that is the negative control."""
    image = images(1, 1, 3, side=8)
    others = image.repeat(3, 1, 1, 1, 1)
    members = torch.cat([others, image.roll((2, -1), (-2, -1))])
    assert torch.equal(register(members), image.repeat(4, 1, 1, 1, 1))
    torch.testing.assert_close(consensus(members), image[0])
    assert (members.mean(0) - image[0]).abs().max() > 0.1


@given(seed=seeds)
def test_where_no_image_is_shifted_the_gradient_is_that_through_the_mean(seed):
    """The oracle: autograd through the mean, whose part of the gradient is 0."""
    base = 3 * images(1, 2, seed)
    x = (base + 0.1 * images(3, 2, seed + 1)).requires_grad_()
    assert torch.equal(register(x.detach()), x.detach())
    (own,) = torch.autograd.grad(disagreement(x), x)
    (through,) = torch.autograd.grad((x - x.mean(0)).square().flatten(2).mean(2).sum(), x)
    torch.testing.assert_close(own, through)


def test_a_group_is_the_sum_of_its_members_and_keeps_the_lowest():
    group = Group(lambda x: x.square().sum(), lambda x: x.reshape(1, 1, 2, 2), members=2, weight=4.0)
    points = torch.tensor([1.0, 0, 0, 0, 3, 0, 0, 0], dtype=torch.float64)
    assert group(points).item() == 1 + 9 + 4 * 0.5
    assert (group.point.tolist(), group.lowest) == ([1.0, 0.0, 0.0, 0.0], 1.0)
    group(points + 1)
    assert group.lowest == 1.0
    group(points * torch.nan)
    assert group.lowest == 1.0


def attacked(attack: Matching, sent: int = 1) -> Guess:
    """The guess for image 1 from the payload of image ``sent``."""
    y = digits(1, 1)[1]
    seen = observe(method("lsg", sparsity=0.5), mlp(torch.nn.ReLU), digits(1, sent)[0], y)
    known = Knowledge(labels=y, examples=1)
    return match(seen, known, PRIOR, attack=attack, generator=torch.Generator().manual_seed(0))


def gain(guess: Guess) -> float:
    x, y = digits(1, 1)
    blind = blind_guess(PRIOR, Knowledge(labels=y, examples=1))
    own, other = (psnr(g.inputs, x, data_range=1.0).item() for g in (guess, blind))
    return own - other


def test_a_weight_that_is_lost_in_rounding_gives_plain_restarts():
    one_by_one, together = attacked(replace(QUICK, group=0.0)), attacked(replace(QUICK, group=1e-300))
    assert torch.equal(one_by_one.inputs, together.inputs)
    assert one_by_one.objective == together.objective
    assert "3 restarts" in one_by_one.note
    assert "a group of 3" in together.note
    assert not torch.equal(one_by_one.inputs, attacked(QUICK).inputs)


def test_an_image_comes_back_from_its_own_payload_only():
    """The negative control: the payload of another image gains nothing."""
    assert gain(attacked(QUICK)) > 5
    assert gain(attacked(QUICK, sent=5)) < 0


def spread(weight: float) -> float:
    """How far two members are apart after a search whose own energy is 0 everywhere, as a share of their start."""
    group = Group(lambda x: 0 * x.sum(), lambda x: x.reshape(1, 1, 4, 4), members=2, weight=weight)
    points: list[Tensor] = []

    def energy(both: Tensor) -> Tensor:
        points.append(both.detach())
        return group(both)

    start = images(2, 1, 0, side=4)[:, :, :1].flatten()
    box = Box(low=torch.zeros(16), high=torch.ones(16)).repeat(2)
    step_size = torch.full((32,), 0.02)
    adam(energy, start, box, evaluations=60, step_size=step_size, signed=False, go_on=lambda done, lowest: True)
    return (points[-1][:16] - points[-1][16:]).norm().item() / (start[:16] - start[16:]).norm().item()


def test_a_weight_draws_members_together():
    assert spread(0.0) == 1
    assert spread(1.0) < 0.5


def test_progress_counts_all_members_and_time_is_kept():
    told: list[tuple[int, int, str]] = []
    x, y = digits(1)
    slow = replace(QUICK, evaluations=100_000, seconds=0.3)
    match(
        observe(method("rgp"), mlp(), x, y), Knowledge(labels=y, examples=1), PRIOR, attack=slow,
        generator=torch.Generator().manual_seed(0), progress=lambda *report: told.append(report),
    )  # fmt: skip
    done = [report[0] for report in told]
    assert done == sorted(done)
    assert done[0] == 3
    assert told[0][2].startswith("group of 3, objective ")
    assert told[-1][:2] == (300_000, 300_000)


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match="group"):
        replace(QUICK, group=-1.0)
