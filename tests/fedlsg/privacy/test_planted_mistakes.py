"""Negative controls: each check holds for the code as shipped, and fails on the mistake it is there for.

A plant replaces one part behind the front door (a name that the step, the method or the mechanism looks up), or one
argument of it.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fedlsg.method
import fedlsg.privacy.mechanism
import fedlsg.training.client
import tests.fedlsg.support.step_oracle
from fedlsg.frame import make_blocks
from fedlsg.gradients.per_example import per_example_gradients
from fedlsg.masks.mask import Mask
from fedlsg.method import aggregate
from fedlsg.privacy.mechanism import Mechanism, add_noise, clip_factors, clipped_sum
from fedlsg.randomness import SecretStream, reproducible_stream
from tests.fedlsg.support.step_checks import (
    PER_BLOCK,
    a_broken_example_is_dropped,
    an_empty_batch_is_noised,
    company_changes_no_contribution,
    flat,
    float32_contributions_stay_within_the_clip,
    movements,
    noise_has_the_accounted_deviation,
    noise_is_fresh_for_every_client,
    noise_is_fresh_in_every_step,
    noise_lies_where_the_mask_keeps,
    one_example_moves_the_sum_by_the_sensitivity_at_most,
    streams,
    the_ledger_is_charged_before_the_batch_is_drawn,
    the_ledger_is_written_before_the_noise_is_drawn,
    the_ledgers_multiplier_is_true,
    the_step_equals_the_naive_loop,
    twice_the_data_gives_twice_the_sum,
    two_clients_count_twice,
)
from tests.fedlsg.support.step_oracle import CLIP_ONLY, NOISY, problem


def halved_noise(total, mechanism, noise):
    return total + (add_noise(total, mechanism, noise) - total) / 2


def noise_only_on_the_first_half(total, mechanism, noise):
    mask = torch.arange(len(total)) < len(total) // 2
    return torch.where(mask, add_noise(total, mechanism, noise), total)


def noise_on_another_mask(total, mechanism, noise):
    """The flat vector is noised on the coordinates of the next epoch's mask, and sent on those of this one's."""
    frame = problem(Mask(kind="uniform", sparsity=0.5)).frame
    other = torch.randperm(frame.size, generator=torch.Generator().manual_seed(1))[: len(total)]
    whole = torch.zeros(frame.size, dtype=total.dtype).index_copy(0, frame.indices, total)
    whole[other] = add_noise(whole[other], mechanism, noise)
    return whole[frame.indices]


def noise_on_everything(frame, values):
    """The server's flat vector with noise on the frozen coordinates, too."""
    noise = NOISY.noise_std * reproducible_stream(1).normal(frame.size)
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


def skipped_empty_batch(total, mechanism, noise):
    return add_noise(total, mechanism, noise) if total.any() else total


def clip_after_sum(gradients, mechanism, **options):
    total = torch.cat([block.sum(0).flatten() for block in gradients])
    return total * min(1.0, mechanism.clip_norm / max(float(total.norm()), 1e-300))


def mean_of_the_batch(gradients, mechanism, **options):
    """The realised batch size as divisor."""
    return clipped_sum(gradients, mechanism) / max(1, len(gradients[0]))


def mean_of_those_who_answered(updates):
    return aggregate(updates) / len(updates)


def no_clip(gradients, mechanism, **options):
    return torch.cat([block.sum(0).flatten() for block in gradients])


def clip_without_dense_parameters(gradients, mechanism, **options):
    """The joint norm of the carriers only: biases and the classifier ride along outside the clip."""
    carried = [i for i, b in enumerate(problem().frame.blocks) if b.part != "dense"]
    rows = [block.flatten(1) for block in gradients]
    norms = torch.cat([rows[i] for i in carried], dim=1).norm(dim=1)
    factors = clip_factors(norms, mechanism.clip_norm, norms.dtype, 0)
    return torch.cat([factors @ block for block in rows])


def clip_before_mask(model, loss_fn, inputs, targets, frame, **_options):
    """Scaled by the norm of all coordinates, then masked."""
    whole = replace(frame, blocks=make_blocks(frame.coordinates))
    gradients = torch.cat(per_example_gradients(model, loss_fn, inputs, targets, whole), dim=1)
    factors = clip_factors(gradients.norm(dim=1), CLIP_ONLY.clip_norm, gradients.dtype, 0)
    kept = (gradients * factors.unsqueeze(1))[:, frame.indices]
    return kept.split([block.kept for block in frame.blocks], dim=1)


def mean_loss(outputs, targets):
    """The share of each example in the mean over its batch."""
    return problem().loss_fn(outputs, targets) / len(targets)


def factor_to_nearest(norms, clip_norm, dtype, coordinates):
    return (clip_norm / norms).clamp(max=1).to(dtype)


def factor_rounded_up(norms, clip_norm, dtype, coordinates):
    return torch.nextafter(factor_to_nearest(norms, clip_norm, dtype, coordinates), torch.tensor(math.inf, dtype=dtype))


def keeps_broken_examples(gradients, mechanism, **options):
    rows = torch.cat([block.flatten(1) for block in gradients], dim=1)
    norms = rows.norm(dim=1)
    return clip_factors(norms, mechanism.clip_norm, norms.dtype, 0) @ rows


def claimed_multiplier(self, blocks):
    return self.noise_multiplier


def claimed_sensitivity(self, blocks):
    return self.clip_norm


CLIENT, METHOD, PRIVATIZE = fedlsg.training.client, fedlsg.method, fedlsg.privacy.mechanism
PLANTS = {
    "noise halved": (noise_has_the_accounted_deviation, CLIENT, "add_noise", halved_noise),
    "noise on half of the mask": (noise_lies_where_the_mask_keeps, CLIENT, "add_noise", noise_only_on_the_first_half),
    "noise on another mask": (noise_lies_where_the_mask_keeps, CLIENT, "add_noise", noise_on_another_mask),
    "noise reused between steps": (noise_is_fresh_in_every_step, CLIENT, "add_noise", reused_noise()),
    "empty batch skipped": (an_empty_batch_is_noised, CLIENT, "add_noise", skipped_empty_batch),
    "clip after sum": (
        one_example_moves_the_sum_by_the_sensitivity_at_most,
        CLIENT,
        "clipped_sum",
        clip_after_sum,
    ),
    "no clip": (one_example_moves_the_sum_by_the_sensitivity_at_most, CLIENT, "clipped_sum", no_clip),
    "dense parameters outside the clip": (
        one_example_moves_the_sum_by_the_sensitivity_at_most,
        CLIENT,
        "clipped_sum",
        clip_without_dense_parameters,
    ),
    "per-block clip claims sigma": (
        the_ledgers_multiplier_is_true,
        Mechanism,
        "effective_noise_multiplier",
        claimed_multiplier,
    ),
    "per-block clip claims sensitivity C": (
        the_ledgers_multiplier_is_true,
        Mechanism,
        "sensitivity",
        claimed_sensitivity,
    ),
    "divided by the batch": (twice_the_data_gives_twice_the_sum, CLIENT, "clipped_sum", mean_of_the_batch),
    "divided by who answered": (two_clients_count_twice, METHOD, "aggregate", mean_of_those_who_answered),
    "clip before mask": (the_step_equals_the_naive_loop, CLIENT, "block_gradients", clip_before_mask),
    "clip after sum, by the loop": (the_step_equals_the_naive_loop, CLIENT, "clipped_sum", clip_after_sum),
    "factor to nearest": (float32_contributions_stay_within_the_clip, PRIVATIZE, "clip_factors", factor_to_nearest),
    "factor rounded up": (float32_contributions_stay_within_the_clip, PRIVATIZE, "clip_factors", factor_rounded_up),
    "broken examples kept": (a_broken_example_is_dropped, CLIENT, "clipped_sum", keeps_broken_examples),
}


@pytest.mark.parametrize("name", PLANTS)
def test_shipped_passes_and_planted_fails(name, monkeypatch):
    check, place, attribute, plant = PLANTS[name]
    assert check()
    monkeypatch.setattr(place, attribute, plant)
    assert not check()


def test_noise_on_everything_is_caught():
    assert noise_lies_where_the_mask_keeps(flat)
    assert not noise_lies_where_the_mask_keeps(noise_on_everything)


def test_noise_shared_by_clients_is_caught():
    """One stream key for a whole round, or the fixed one of a forgotten test mode."""
    assert noise_is_fresh_for_every_client()
    assert not noise_is_fresh_for_every_client(lambda label: streams(label // 3))


def test_a_mean_loss_is_caught():
    """As one number it is refused; spread over the examples it changes with the batch, and that is caught."""
    assert company_changes_no_contribution()
    assert not company_changes_no_contribution(mean_loss)
    with pytest.raises(ValueError, match="one loss an example"):
        company_changes_no_contribution(lambda outputs, targets: mean_loss(outputs, targets).sum())


def test_a_late_ledger_is_caught(monkeypatch):
    """A step that draws its noise before it asks the ledger, although it adds it afterwards."""
    assert the_ledger_is_written_before_the_noise_is_drawn()
    shipped = tests.fedlsg.support.step_oracle.client_step

    def noise_first(*args, noise, charge, **settings):
        class Drawn:
            drawn = noise.normal(settings["frame"].kept)

            def normal(self, count):
                return self.drawn

        return shipped(*args, noise=Drawn(), charge=charge, **settings)

    monkeypatch.setattr(tests.fedlsg.support.step_oracle, "client_step", noise_first)
    assert not the_ledger_is_written_before_the_noise_is_drawn()


@pytest.mark.parametrize("kind", ["dp", "none"])
def test_a_charge_after_the_batch_is_caught(monkeypatch, kind):
    """A step that draws its batch before it asks the ledger; without clip and noise, on the short way."""
    mechanism = NOISY if kind == "dp" else Mechanism(kind=kind)
    assert the_ledger_is_charged_before_the_batch_is_drawn(mechanism)
    shipped = tests.fedlsg.support.step_oracle.client_step

    def batch_first(*args, sampler, charge, local, num_examples, **settings):
        class Drawn:
            drawn = sampler.bernoulli(num_examples, local.sample_rate)

            def bernoulli(self, count, probability):
                return self.drawn

        return shipped(*args, sampler=Drawn(), charge=charge, local=local, num_examples=num_examples, **settings)

    monkeypatch.setattr(tests.fedlsg.support.step_oracle, "client_step", batch_first)
    assert not the_ledger_is_charged_before_the_batch_is_drawn(mechanism)


def test_clip_before_mask_is_private_but_another_mechanism(monkeypatch):
    """Pinned: scaling by the norm of all coordinates stays within C, yet sends less than mask-then-clip does."""
    shipped = problem().step(CLIP_ONLY)
    monkeypatch.setattr(CLIENT, "block_gradients", clip_before_mask)
    assert one_example_moves_the_sum_by_the_sensitivity_at_most(CLIP_ONLY)
    planted = problem().step(CLIP_ONLY)
    assert float((planted - shipped).norm()) > 0.01 * float(shipped.norm())


def test_per_block_claims_are_off_by_the_root_of_the_blocks():
    """With every block clipped the claim of sigma is false by sqrt(G); jointly it is true."""
    joint = replace(PER_BLOCK, clip="joint")
    assert the_ledgers_multiplier_is_true(joint)
    blocks = len(problem().frame.blocks)
    ratio = joint.effective_noise_multiplier(blocks) / PER_BLOCK.effective_noise_multiplier(blocks)
    assert ratio == pytest.approx(math.sqrt(blocks))
    assert max(movements(PER_BLOCK)) > 0.8 * PER_BLOCK.sensitivity(blocks)
