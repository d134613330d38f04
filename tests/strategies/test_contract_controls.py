"""Negative controls of the contract: each mistake is planted behind the front door, and its check
finds it.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fedlsg.method
import fedlsg.training.client_round
from fedlsg.frame import Coordinates, Frame
from fedlsg.payload import PayloadError
from fedlsg.privacy.clip import clipped_sum
from fedlsg.privacy.clip_norms import clip_factors
from fedlsg.privacy.mechanism import Mechanism, add_noise
from tests.fedlsg.support.plants import clip_after_sum
from tests.strategies import contract
from tests.strategies.contract import (
    FEW_DRAWS,
    LEAST_DRAWS,
    Data,
    carrier_defects,
    data_set,
    lift_defects,
    noise_defects,
    random_values,
    received,
    sensitivity_defects,
    subject,
)
from tests.strategies.contract_cases import CASES, of

CLIENT = fedlsg.training.client_round


def gradients_weighted_after_the_clip(gradients, mechanism, **options):
    """The clip's weights taken as a scale of the result instead of a change of the norm."""
    weights = [b.weight for b in of("linear-probe: clip weights").frame.blocks]
    total = clipped_sum([g / w for g, w in zip(gradients, weights, strict=True)], mechanism)
    pieces = total.split([g.shape[1] for g in gradients])
    return torch.cat([piece * w for piece, w in zip(pieces, weights, strict=True)])


def copies_as_examples(gradients, copies):
    """Each augmented copy is clipped as if it were an example of its own."""
    return [*gradients]


def no_clip(gradients, mechanism, **options):
    return torch.cat([block.sum(0) for block in gradients])


def clip_without_dense_parameters(gradients, mechanism, **options):
    """The joint norm of the carriers only: biases and the classifier ride along outside the
    clip.
    """
    carried = [
        g for g, b in zip(gradients, of("lsg").frame.blocks, strict=True) if b.part != "dense"
    ]
    factors = clip_factors(
        torch.cat(carried, dim=1).norm(dim=1).nan_to_num(), mechanism.clip_norm, carried[0].dtype, 0
    )
    return torch.cat([factors @ block.nan_to_num() for block in gradients])


def broken_examples_kept(gradients, mechanism, **options):
    norms = torch.cat(list(gradients), dim=1).norm(dim=1)
    return torch.cat(
        [clip_factors(norms, mechanism.clip_norm, norms.dtype, 0) @ block for block in gradients]
    )


def claimed_sensitivity(self, blocks):
    return self.clip_norm


def claimed_multiplier(self, blocks):
    return self.noise_multiplier


def clip_by_half_of_the_blocks(gradients, mechanism, **options):
    """The norm of the first half; the rest rides along outside the clip."""
    half = torch.cat(list(gradients[: len(gradients) // 2]), dim=1).nan_to_num()
    factors = clip_factors(half.norm(dim=1), mechanism.clip_norm, half.dtype, 0)
    return torch.cat([factors @ block.nan_to_num() for block in gradients])


def clip_by_the_norm_before_the_scales(gradients, mechanism, **options):
    """The norm of L^T dW R^T along carriers of length 1; their scales come after the clip."""
    frame = of("probe: whitened").frame
    carried = {c.name: c for c in frame.coordinates if c.carried}
    plain = []
    for block, gradient in zip(frame.blocks, gradients, strict=True):
        if block.parameter in carried:
            c = carried[block.parameter]
            scales = torch.outer(c.L.norm(dim=0), c.R.norm(dim=1)).flatten().to(gradient)
            gradient = gradient / scales[block.keep.positions(block.shape)]
        plain.append(gradient)
    norms = torch.cat(plain, dim=1).nan_to_num().norm(dim=1)
    factors = clip_factors(norms, mechanism.clip_norm, norms.dtype, 0)
    return torch.cat([factors @ block.nan_to_num() for block in gradients])


UNSAFE = {
    "no clip": ("lsg", CLIENT, "clipped_sum", no_clip),
    "masked, then not clipped": ("rs", CLIENT, "clipped_sum", no_clip),
    "clip over half of the blocks": ("lsg", CLIENT, "clipped_sum", clip_by_half_of_the_blocks),
    "clip after sum": ("lsg", CLIENT, "clipped_sum", clip_after_sum),
    "dense parameters outside the clip": (
        "lsg",
        CLIENT,
        "clipped_sum",
        clip_without_dense_parameters,
    ),
    "scales of a core after the clip": (
        "probe: whitened",
        CLIENT,
        "clipped_sum",
        clip_by_the_norm_before_the_scales,
    ),
    "weights after the clip": (
        "linear-probe: clip weights",
        CLIENT,
        "clipped_sum",
        gradients_weighted_after_the_clip,
    ),
    "copies clipped as examples": ("lsg: two copies", CLIENT, "mean_of_copies", copies_as_examples),
    "copies as examples, with weights": (
        "rs: two copies, clip weights",
        CLIENT,
        "mean_of_copies",
        copies_as_examples,
    ),
    "copies as examples, factors sent": (
        "dp-powersgd: two copies",
        CLIENT,
        "mean_of_copies",
        copies_as_examples,
    ),
    "examples that are no number kept": ("dpsgd", CLIENT, "clipped_sum", broken_examples_kept),
    "pruning without a clip": ("dp-ssgd: pruning round", CLIENT, "clipped_sum", no_clip),
    "per-block clip claims C": (
        "lsg: clip per block",
        Mechanism,
        "sensitivity",
        claimed_sensitivity,
    ),
    "per-block clip claims sigma": (
        "lsg: clip per block",
        Mechanism,
        "effective_noise_multiplier",
        claimed_multiplier,
    ),
    "per-block clip of rs claims C": (
        "rs: clip per block",
        Mechanism,
        "sensitivity",
        claimed_sensitivity,
    ),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("mistake", UNSAFE)
def test_a_step_that_is_less_private_than_claimed_is_caught(mistake, monkeypatch):
    case, place, attribute, plant = UNSAFE[mistake]
    s = of(case)
    assert sensitivity_defects(s) == []
    monkeypatch.setattr(place, attribute, plant)
    # plants need formed ones
    monkeypatch.setattr(CLIENT, "allows_ghost_clipping", lambda frame: False)
    assert sensitivity_defects(s) != []


class DrawnInOrder(Data):
    """Augmentation from a known seed, one draw a row in the order of the batch."""

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(positions)
        generator = torch.Generator().manual_seed(0)
        return inputs + torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype), targets


def test_augmentation_drawn_in_order_from_a_known_seed_is_caught():
    """One example less shifts the draws of all that come after it: more than its own gradient
    moves.
    """
    s, data = of("dpsgd"), data_set(0)
    data = replace(
        data,
        targets=torch.stack([data.targets[:, 0], torch.full((len(data.targets),), 100.0)], dim=1),
    )

    def moved(data: Data) -> float:
        return float((s.step(data) - s.step(data.without(0))).norm())

    claimed = s.mechanism.sensitivity(len(s.frame.blocks))
    assert moved(data) <= claimed * (1 + 1e-9)
    assert moved(DrawnInOrder(data.inputs, data.targets)) > claimed * 1.05


def empty_batch_skipped(total, mechanism, noise):
    return add_noise(total, mechanism, noise) if total.any() else total


def halved_at_the_end(total, mechanism, noise):
    noisy = add_noise(total, mechanism, noise)
    last = torch.arange(len(total)) >= len(total) - len(total) // 4
    return torch.where(last, total + (noisy - total) / 2, noisy)


def one_draw_for_two_halves(total, mechanism, noise):
    half = (len(total) + 1) // 2
    draw = add_noise(total[:half], mechanism, noise) - total[:half]
    return total + torch.cat([draw, draw])[: len(total)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("plant", [halved_at_the_end, one_draw_for_two_halves, empty_batch_skipped])
@pytest.mark.parametrize("case", ["lsg", "dp-ssgd: pruning round"])
def test_less_noise_than_accounted_is_caught(case, plant, monkeypatch):
    monkeypatch.setattr(CLIENT, "add_noise", plant)
    assert noise_defects(of(case), LEAST_DRAWS // 2) != [], "with the draws of the contract"


@pytest.mark.parametrize("case", ["lsg", "rgp-random", "rs: new mask every step", "dp-powersgd"])
def test_a_client_with_another_seed_is_caught(case, monkeypatch):
    """Its frame has another digest, and its payload is refused by that name."""
    shipped, derived = contract.derived_frame, []

    def with_another_seed(client, round, **rest):
        derived.append(shipped(replace(client, seed=client.seed + 1), round, **rest))
        return derived[-1]

    monkeypatch.setattr(contract, "derived_frame", with_another_seed)
    s = subject(CASES[case])
    assert s.derived is derived[-1]
    assert s.frame.digest != s.derived.digest
    with pytest.raises(PayloadError, match="frame digest"):
        received(s, random_values(s.derived, 0) / 1000)


def test_an_epsilon_claimed_without_a_clip_is_caught(monkeypatch):
    s = of("rs: noisy SGD")
    assert sensitivity_defects(s) == []
    monkeypatch.setattr(
        Mechanism, "effective_noise_multiplier", lambda self, blocks: self.noise_multiplier
    )
    assert sensitivity_defects(s) == ["claims an epsilon without clip and noise"]


def spilt_over_frozen_ones(self: Frame, values: Tensor) -> list[Tensor]:
    """A server that fills frozen coordinates, too."""
    return [torch.full(b.shape, float(values.mean()), dtype=values.dtype) for b in self.blocks]


@pytest.mark.parametrize("case", ["rs", "sparse-dpsgd", "dp-ssgd"])
def test_a_gradient_on_frozen_coordinates_is_caught(case, monkeypatch):
    s = of(case)
    monkeypatch.setattr(Frame, "split", spilt_over_frozen_ones)
    assert lift_defects(s) != []


@pytest.mark.parametrize("case", ["rgp-random", "lsg-probe", "gep"])
def test_carriers_that_are_not_orthonormal_are_caught(case, monkeypatch):
    """Eq. 3 is wrong for them, and nothing else of a run would say so."""

    def doubled(self, *, L=None, R=None, **other):
        made(self, L=None if L is None else 2 * L, R=R, **other)

    made = Coordinates.__init__
    monkeypatch.setattr(Coordinates, "__init__", doubled)
    found = carrier_defects(subject(CASES[case]))
    assert found
    assert all(words.startswith("L of ") for words in found)


@pytest.mark.parametrize("case", ["lsg", "dpsgd", "bitfit"])
def test_halved_noise_is_caught_with_the_draws_of_the_short_contract(case, monkeypatch):
    def halved(total, mechanism, noise):
        return total + (add_noise(total, mechanism, noise) - total) / 2

    assert noise_defects(of(case), FEW_DRAWS) == []
    monkeypatch.setattr(CLIENT, "add_noise", halved)
    assert noise_defects(of(case), FEW_DRAWS) != []
