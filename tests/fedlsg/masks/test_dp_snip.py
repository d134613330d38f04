"""DP-SNIP: saliencies against autograd, what one example can move, and what the ledger must be
told.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlsg.masks.pruning import Prune, pruning_mechanism, saliency_frame, saliency_scale
from fedlsg.method import LocalTraining, Method
from fedlsg.noise.sampler import CELL_CHOICE_BITS
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.randomness import SecretStream
from tests.fedlsg.support.step_oracle import DENSE, EXACT, Problem, cnn, mlp, problem

CLIP = 0.05
METHOD = Method(name="test", prune=Prune(kind="dp-snip", rate=0.5, clip_norm=CLIP))
CLIP_ONLY = replace(pruning_mechanism(METHOD.mechanism, METHOD.prune), kind="clip-only")
NONE = replace(CLIP_ONLY, kind="none")


def saliency_problem(make=mlp) -> Problem:
    p = problem(carrier=DENSE, mask=METHOD.mask, make=make)
    p.frame = saliency_frame(dict(p.model.named_parameters()))
    return p


def pruning_step(
    p: Problem, mechanism: Mechanism, scale: list[Tensor] | None = None, **changes
) -> Tensor:
    scale = saliency_scale(dict(p.model.named_parameters()), p.frame) if scale is None else scale
    return p.step(mechanism, changes.pop("local", LocalTraining()), scale=scale, **changes)


def naive(p: Problem, clip_norm: float | None) -> Tensor:
    """One example after the other: g * w over the weight tensors as one vector, clipped, summed."""
    total = 0
    for i in range(len(p.inputs)):
        loss = p.loss_fn(p.model(p.inputs[i : i + 1]), p.targets[i : i + 1]).sum()
        parameters = [w for w in p.model.parameters() if w.ndim >= 2]
        gradients = torch.autograd.grad(loss, parameters)
        saliency = torch.cat(
            [(g * w).flatten() for g, w in zip(gradients, parameters, strict=True)]
        ).detach()
        total = total + saliency * (
            1 if clip_norm is None else min(1.0, clip_norm / float(saliency.norm()))
        )
    return total


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("micro", [1, 4, 256])
def test_saliencies_equal_autograd_and_are_clipped_jointly(make, micro):
    p = saliency_problem(make)
    local = LocalTraining(microbatch_size=micro)
    torch.testing.assert_close(pruning_step(p, NONE, local=local), naive(p, None), **EXACT)
    torch.testing.assert_close(pruning_step(p, CLIP_ONLY, local=local), naive(p, CLIP), **EXACT)
    assert not torch.allclose(naive(p, None), naive(p, CLIP))


def test_the_frame_keeps_weights_alone():
    p = saliency_problem(cnn)
    by_name = {b.parameter: b.kept for b in p.frame.blocks}
    assert by_name == {n: w.numel() if w.ndim >= 2 else 0 for n, w in p.model.named_parameters()}
    model = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight[0, 1] = 0
    assert saliency_frame(dict(model.named_parameters())).indices.tolist() == [0, 2, 3, 4, 5]
    nn.init.zeros_(model.weight)
    with pytest.raises(ValueError, match="nothing to prune"):
        saliency_frame(dict(model.named_parameters()))


def largest_movement(mechanism: Mechanism, scale: list[Tensor] | None = None) -> float:
    p = saliency_problem()
    moved = []
    for count in range(1, len(p.inputs)):
        with_one_more, without = (
            pruning_step(replace(p, inputs=p.inputs[:k], targets=p.targets[:k]), mechanism, scale)
            for k in (count + 1, count)
        )
        moved.append(float((with_one_more - without).norm()))
    return max(moved)


def the_ledger_is_told_the_truth(mechanism: Mechanism, scale: list[Tensor] | None = None) -> bool:
    """The ledger charges sigma: noise over C. One example may then move the sum by C at most."""
    return largest_movement(replace(mechanism, kind="clip-only"), scale) <= CLIP * (1 + 1e-12)


def test_one_example_moves_the_sum_by_the_clip_norm_at_most():
    assert the_ledger_is_told_the_truth(pruning_mechanism(METHOD.mechanism, METHOD.prune))
    assert largest_movement(CLIP_ONLY) > 0.99 * CLIP


def test_a_clip_by_block_is_caught():
    """Negative control: C for each block, accounted as if it were C for all."""
    assert not the_ledger_is_told_the_truth(
        replace(pruning_mechanism(METHOD.mechanism, METHOD.prune), clip="per-block")
    )


def test_a_clip_before_the_weights_are_multiplied_is_caught():
    """Negative control: clip g to C, then multiply by w: the saliency is as long as the weights
    make it.
    """
    p = saliency_problem()
    ones = [torch.ones(b.kept, dtype=torch.float64) for b in p.frame.blocks]
    factor = torch.cat(saliency_scale(dict(p.model.named_parameters()), p.frame)) * 10
    small, large = (
        pruning_step(replace(p, inputs=p.inputs[:k], targets=p.targets[:k]), CLIP_ONLY, ones)
        * factor
        for k in (10, 11)
    )
    assert float((large - small).norm()) > CLIP


def test_round_0_is_clipped_jointly_whatever_training_does():
    mechanism = Mechanism(
        clip="per-block",
        clip_norm=7.0,
        norms_clip_weight=3.0,
        classifier_clip_weight=2.0,
        noise_multiplier=1.5,
    )
    got = pruning_mechanism(mechanism, METHOD.prune)
    assert (got.clip, got.clip_norm, got.noise_multiplier) == ("joint", CLIP, 1.5)
    assert got.effective_noise_multiplier(9) == pytest.approx(1.5)
    assert {got.weight_of(group) for group in ("carriers", "norms", "classifier")} == {1.0}


def test_the_ledger_is_charged_before_the_noise_is_drawn():
    events: list[str] = []

    class Stream(SecretStream):
        def words(self, count: int, *, bits: int = 64) -> np.ndarray:
            if bits == CELL_CHOICE_BITS:
                events.append(f"noise {count}")
            return super().words(count, bits=bits)

    p = saliency_problem()
    noisy = replace(pruning_mechanism(METHOD.mechanism, METHOD.prune), noise_multiplier=1.5)
    released = pruning_step(
        p, noisy, noise=Stream(bytes(32)), charge=lambda: events.append("charge")
    )
    assert events == ["charge", f"noise {p.frame.kept}"]
    noise = (released - pruning_step(p, CLIP_ONLY)) / (1.5 * CLIP)
    assert abs(float(noise.std()) - 1) < 0.2
