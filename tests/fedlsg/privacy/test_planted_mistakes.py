"""Negative controls: each check holds for the code as shipped, and fails on the mistake it is there
for.

A plant replaces one part behind the front door, or one argument of it. What is less private than
claimed by one example's movement or by its noise is planted in the controls of the recipes'
contract.
"""

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

import fedlsg.method
import fedlsg.privacy.clip
import fedlsg.training.client_round
import tests.fedlsg.support.step_oracle
from fedlsg.masks.mask import Mask
from fedlsg.method import aggregate
from fedlsg.noise import add_gaussian
from fedlsg.privacy.clip import clipped_sum
from fedlsg.privacy.mechanism import Mechanism, add_noise
from fedlsg.randomness import SecretStream, reproducible_stream
from tests.fedlsg.support.plants import clip_after_sum, clipped_before_the_mask
from tests.fedlsg.support.step_checks import (
    company_changes_no_contribution,
    flat,
    float32_contributions_stay_within_the_clip,
    noise_is_fresh_for_every_client,
    noise_is_fresh_in_every_step,
    noise_lies_where_the_mask_keeps,
    streams,
    the_ledger_is_charged_before_the_batch_is_drawn,
    the_ledger_is_written_before_the_noise_is_drawn,
    the_step_equals_the_naive_loop,
    twice_the_data_gives_twice_the_sum,
    two_clients_count_twice,
)
from tests.fedlsg.support.step_oracle import NOISY, problem
from tests.noise import noise_by


def noise_on_another_mask(total, mechanism, noise):
    """Noise is added on the coordinates of the next epoch's mask, and sent on those of this
    one's.
    """
    frame = problem(Mask(kind="uniform", sparsity=0.5)).frame
    other = torch.randperm(frame.size, generator=torch.Generator().manual_seed(1))[: len(total)]
    whole = torch.zeros(frame.size, dtype=total.dtype).index_copy(0, frame.indices, total)
    whole[other] = add_noise(whole[other], mechanism, noise)
    return whole[frame.indices]


def noise_on_everything(frame, values):
    """The server's flat vector with noise on the frozen coordinates, too."""
    noise = add_gaussian(torch.zeros(frame.size).double(), NOISY.noise_std, reproducible_stream(1))
    return flat(frame, values).where(flat(frame, torch.ones_like(values)) == 1, noise)


def reused_noise():
    """One draw for all steps of a client."""
    draws: dict[int, Tensor] = {}

    def plant(total, mechanism, noise):
        draw = draws.setdefault(id(noise), add_noise(torch.zeros_like(total), mechanism, noise))
        streams_alive.append(noise)
        return total + draw

    streams_alive: list[SecretStream] = []
    return plant


LOSS = problem().loss_fn


def mean_of_the_batch(gradients, mechanism, **options):
    """The realised batch size as divisor."""
    return clipped_sum(gradients, mechanism) / max(1, len(gradients[0]))


def mean_of_those_who_answered(updates):
    return aggregate(updates) / len(updates)


def mean_loss(outputs, targets):
    """The share of each example in the mean over its batch."""
    return LOSS(outputs, targets) / len(targets)


def factor_to_nearest(norms, clip_norm, dtype, coordinates, *, lost):
    return (clip_norm / norms).clamp(max=1).to(dtype)


def factor_rounded_up(norms, clip_norm, dtype, coordinates, *, lost):
    nearest = factor_to_nearest(norms, clip_norm, dtype, coordinates, lost=lost)
    return torch.nextafter(nearest, torch.tensor(math.inf, dtype=dtype))


CLIENT, METHOD, PRIVATIZE = fedlsg.training.client_round, fedlsg.method, fedlsg.privacy.clip
PLANTS = {
    "noise on another mask": (
        noise_lies_where_the_mask_keeps,
        CLIENT,
        "add_noise",
        noise_on_another_mask,
    ),
    "noise reused between steps": (
        noise_is_fresh_in_every_step,
        CLIENT,
        "add_noise",
        reused_noise(),
    ),
    "divided by the batch": (
        twice_the_data_gives_twice_the_sum,
        CLIENT,
        "clipped_sum",
        mean_of_the_batch,
    ),
    "divided by who answered": (
        two_clients_count_twice,
        METHOD,
        "aggregate",
        mean_of_those_who_answered,
    ),
    "clip before mask": (
        the_step_equals_the_naive_loop,
        CLIENT,
        "block_gradients",
        clipped_before_the_mask,
    ),
    "clip after sum, by the loop": (
        the_step_equals_the_naive_loop,
        CLIENT,
        "clipped_sum",
        clip_after_sum,
    ),
    "factor to nearest": (
        float32_contributions_stay_within_the_clip,
        PRIVATIZE,
        "clip_factors",
        factor_to_nearest,
    ),
    "factor rounded up": (
        float32_contributions_stay_within_the_clip,
        PRIVATIZE,
        "clip_factors",
        factor_rounded_up,
    ),
}


@cache
def as_shipped(check: Callable[[], bool]) -> bool:
    """Whether a check holds without a plant; many plants share one."""
    return check()


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", PLANTS)
def test_shipped_passes_and_planted_fails(name, monkeypatch):
    check, place, attribute, plant = PLANTS[name]
    assert as_shipped(check)
    monkeypatch.setattr(place, attribute, plant)
    assert not check()


def test_noise_on_everything_is_caught():
    assert as_shipped(noise_lies_where_the_mask_keeps)
    assert not noise_lies_where_the_mask_keeps(noise_on_everything)


def test_noise_shared_by_clients_is_caught():
    """One stream key for a whole round, or the fixed one of a forgotten test mode."""
    assert noise_is_fresh_for_every_client()
    assert not noise_is_fresh_for_every_client(lambda label: streams(label // 3))


def test_a_mean_loss_is_caught():
    """As one number it is refused; spread over the examples it changes with the batch, and that is
    caught.
    """
    assert company_changes_no_contribution()
    assert not company_changes_no_contribution(mean_loss)
    with pytest.raises(ValueError, match="one loss an example"):
        company_changes_no_contribution(lambda outputs, targets: mean_loss(outputs, targets).sum())


def test_a_late_ledger_is_caught(monkeypatch):
    """A step that draws its noise before it asks the ledger, although it adds it afterwards."""
    assert the_ledger_is_written_before_the_noise_is_drawn()
    shipped = tests.fedlsg.support.step_oracle.client_step

    def noise_first(*args, noise, charge, **settings):
        drawn = add_gaussian(
            torch.zeros(settings["frame"].kept).double(), settings["mechanism"].noise_std, noise
        )
        with noise_by(lambda total, std, stream: total + drawn):
            return shipped(*args, noise=noise, charge=charge, **settings)

    monkeypatch.setattr(tests.fedlsg.support.step_oracle, "client_step", noise_first)
    assert not the_ledger_is_written_before_the_noise_is_drawn()


@pytest.mark.parametrize("kind", ["dp", "none"])
def test_a_charge_after_the_batch_is_caught(monkeypatch, kind):
    """A step that draws its batch before it asks the ledger; without clip and noise, on the short
    way.
    """
    mechanism = NOISY if kind == "dp" else Mechanism(kind=kind)
    assert the_ledger_is_charged_before_the_batch_is_drawn(mechanism)
    shipped = tests.fedlsg.support.step_oracle.client_step

    def batch_first(*args, sampler, charge, local, num_examples, **settings):
        class Drawn:
            drawn = sampler.bernoulli(num_examples, local.sample_rate)

            def bernoulli(self, count, probability):
                return self.drawn

        return shipped(
            *args,
            sampler=Drawn(),
            charge=charge,
            local=local,
            num_examples=num_examples,
            **settings,
        )

    monkeypatch.setattr(tests.fedlsg.support.step_oracle, "client_step", batch_first)
    assert not the_ledger_is_charged_before_the_batch_is_drawn(mechanism)
