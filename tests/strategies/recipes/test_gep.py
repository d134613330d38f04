"""GEP, BitFit and DP-KFC by their formulas: one release, clipped and accounted."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedlsg.accounting import Event, compose
from fedlsg.carriers import Dense, carried_parameters, prepare_model
from fedlsg.frame import Frame
from fedlsg.gradients import trainable
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.privacy import clipped_sum
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.strategies import recipe
from fedlsg.training import per_unit
from tests.strategies.contract import cnn, mlp
from tests.strategies.own_loop import INPUTS, TARGETS
from tests.strategies.small_federation import model, server_state

C, RANK = 0.01, 3
CHOICES = {"rank": RANK, "probes": 20, "clip_norm": C, "residual_clip": 0.4}
PARTS = ("core", "rest")


def frame_of(**more) -> Frame:
    return server_state("gep", **(CHOICES | more)).frame()


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def units_of(frame: Frame) -> list[Tensor]:
    gradients = per_example_gradients(model(), losses, INPUTS[:8], TARGETS[:8], frame)
    return per_unit(gradients, frame, 1)


def norms(units: list[Tensor], frame: Frame) -> dict[str, Tensor]:
    """Norms of each example's embeddings and rests, with the clip's weights taken off."""
    sides = {
        part: [u / b.weight for u, b in zip(units, frame.blocks, strict=True) if b.part == part]
        for part in PARTS
    }
    return {part: torch.cat(side, 1).double().norm(dim=1) for part, side in sides.items()}


def test_embedding_and_rest_are_the_gradient():
    """Lifted, and without clip: the dense gradient. The embedding alone is not (control)."""
    for biased in (False, True):
        frame = frame_of(biased=biased, mechanism="none")
        dense = per_example_gradients(model(), losses, INPUTS[:1], TARGETS[:1], frame.embedded)
        lifted = frame.gradients(torch.cat(units_of(frame), 1)[0])
        same = [
            torch.allclose(g[0], lifted[c.name].flatten(), atol=1e-6)
            for g, c in zip(dense, frame.coordinates, strict=True)
        ]
        assert all(same) is not biased


def test_each_part_is_clipped_on_its_own():
    """The gradients are far longer than the clip, so both parts reach their bounds. A residual that
    is not clipped does not (control)."""
    frame = frame_of()
    found = norms(units_of(frame), frame)
    bound = C / math.sqrt(2)
    torch.testing.assert_close(found["core"], torch.full((8,), bound).double())
    torch.testing.assert_close(found["rest"], torch.full((8,), 0.4 * bound).double())
    unclipped = norms(units_of(replace(frame, part_norm=None)), frame)
    assert (unclipped["rest"] > 0.4 * bound * 1.5).all()


def test_one_example_moves_both_parts_together_by_c():
    """It reaches C, so that the bound is tight. Parts that are clipped to C each would move by
    sqrt(2) C (control).
    """
    mechanism, frame = Mechanism(clip_norm=C), frame_of()
    units = units_of(frame)
    moved = clipped_sum(units, mechanism, wide=True) - clipped_sum(
        [u[1:] for u in units], mechanism, wide=True
    )
    assert 0.99 * C < moved.norm() <= C
    planted = units_of(replace(frame, part_norm=C))
    assert torch.cat(planted, 1)[0].norm() > 1.4 * C
    # the joint clip does not rest on the parts'
    assert clipped_sum([u[:1] for u in planted], mechanism).norm() <= C


def test_the_joint_clip_changes_nothing_after_the_parts():
    frame = frame_of()
    units = units_of(frame)
    torch.testing.assert_close(
        clipped_sum(units, Mechanism(clip_norm=C)), torch.cat(units, 1).sum(0), rtol=1e-5, atol=1e-9
    )


def test_the_ledger_is_charged_for_both_releases_of_one_batch():
    """sigma = 1 / sqrt(1 / s_1^2 + 1 / s_2^2), s the noise multiplier of a part: noise over the
    part's own bound.

    Controls: the charge for one of the parts alone, and that for two batches, are other epsilons.
    """
    frame, mechanism = frame_of(), Mechanism(clip_norm=C, noise_multiplier=1.3)
    bounds = {part: values.max().item() for part, values in norms(units_of(frame), frame).items()}
    deviations = {b.part: mechanism.noise_std / b.weight for b in frame.blocks}
    s = [deviations[part] / bounds[part] for part in PARTS]
    joint = mechanism.effective_noise_multiplier(len(frame.blocks))
    assert joint == pytest.approx(1 / math.sqrt(sum(1 / one**2 for one in s)), rel=1e-6)

    def spent(*multipliers: float) -> float:
        events = [Event(sample_rate=0.1, noise_multiplier=one, steps=50) for one in multipliers]
        return compose(events, delta=1e-5).upper

    assert spent(s[0]) < 0.8 * spent(joint)
    # two samples of their own would hide the example better than one for both
    assert spent(*s) < 0.99 * spent(joint)


CHOICES_OF_DP_KFC = {"probes": 40, "learning_rate": 0.5}


def test_every_layer_before_the_classifier_is_preconditioned_whole():
    """Also where no low rank would pay: it sends as many values as dense DP-SGD."""
    method = recipe("dp-kfc")
    assert carried_parameters(model(), method.carrier, classifier="classifier") == ("0.weight",)
    frame = server_state("dp-kfc", **CHOICES_OF_DP_KFC).frame()
    assert frame.kept == frame.dense_size == sum(p.numel() for p in trainable(model()).values())
    with pytest.raises(
        ValueError, match="no Linear or Conv2d layer before the classifier to precondition"
    ):
        carried_parameters(nn.Sequential(nn.Linear(3, 2)), method.carrier)


def test_the_server_applies_what_was_sent():
    """W <- W - lr S / divisor: neither preconditioner nor clip is undone."""
    state = server_state("dp-kfc", **CHOICES_OF_DP_KFC, divisor=4.0)
    frame, before = state.frame(), state.weights
    values = torch.randn(frame.kept, generator=torch.Generator().manual_seed(1))
    state.finish_round(frame, [values])
    torch.testing.assert_close(state.weights, before - 0.5 * values / 4.0)


CLASSIFIER = ["classifier.weight", "classifier.bias"]


def prepared(model: nn.Module) -> nn.Module:
    return prepare_model(model, Dense(train="biases"), classifier="classifier", seed=0)


def test_biases_and_classifier_are_trained():
    assert list(trainable(prepared(mlp()))) == ["0.bias", *CLASSIFIER]
    assert list(trainable(prepared(cnn()))) == ["1.bias", "2.bias", "4.bias", *CLASSIFIER]
