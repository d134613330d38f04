"""Personal parameters: in the joint clip and the noise like all others, not in what is sent, and
why it must be so.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedlsg.carriers.personal import personal_gradient, personal_size, shared_values, with_zeros
from fedlsg.carriers.powersgd import decode, encode
from fedlsg.masks.mask import Mask
from fedlsg.method import Compression, LocalTraining, Method
from fedlsg.privacy import Mechanism
from tests.fedlsg.support.step_oracle import (
    CLIP_ONLY,
    DENSE,
    EXAMPLES,
    FRAMES,
    NOISY,
    NONE,
    Problem,
    dense_gradients,
    problem,
    project_and_keep,
)

HEAD = ("4.weight", "4.bias")


def with_head(name: str = "dpsgd") -> Problem:
    p = problem(*FRAMES[name])
    p.frame = replace(p.frame, personal=HEAD)
    return p


def one_example(p: Problem, row: int) -> Problem:
    p.inputs, p.targets = p.inputs[row : row + 1], p.targets[row : row + 1]
    return p


@pytest.mark.parametrize("name", ["dpsgd", "lsg", "rs", "core"])
def test_the_shared_values_are_sent_and_the_head_stays(name):
    p = with_head(name)
    values = p.step(NOISY)
    # clip and noise are those of all parameters together
    assert values.equal(problem(*FRAMES[name]).step(NOISY))
    sent, lifted = encode(values, p.frame), p.frame.gradients(values)
    assert (
        len(sent)
        == p.frame.wire.kept
        == p.frame.kept - sum(b.kept for b in p.frame.blocks if b.parameter in HEAD)
    )
    for parameter, gradient in p.frame.wire.gradients(sent).items():
        assert parameter not in HEAD
        torch.testing.assert_close(gradient, lifted[parameter])
    received = p.frame.gradients(decode(sent, p.frame))
    assert all(bool((received[parameter] == 0).all()) for parameter in HEAD)
    assert encode(with_zeros(sent, p.frame), p.frame).equal(sent)
    assert personal_gradient(values, p.frame).equal(
        torch.cat([lifted[n].flatten() for n in HEAD]).double()
    )
    assert personal_size(p.frame) == 3 * 8 + 3
    assert p.frame.digest != problem(*FRAMES[name]).frame.digest


def joint_norm(shared: Tensor, head: Tensor) -> float:
    """Of what one example moves: what is sent, and what stays."""
    return float(torch.cat([shared.double(), head.double()]).norm())


def test_the_head_is_in_the_clip_of_its_example():
    """Negative control: a head that is left out of the clip moves its example beyond C."""
    p = with_head()
    norms = [
        project_and_keep(dense_gradients(p, p.model, i), p.frame).norm() for i in range(EXAMPLES)
    ]
    p = one_example(p, int(torch.stack(norms).argmax()))
    values = p.step(CLIP_ONLY)
    bound = CLIP_ONLY.clip_norm * (1 + 1e-9)
    assert joint_norm(shared_values(values, p.frame), personal_gradient(values, p.frame)) <= bound
    without_clip = personal_gradient(p.step(NONE), p.frame)
    assert joint_norm(shared_values(values, p.frame), without_clip) > bound


def heads(p: Problem, mechanism: Mechanism, count: int) -> Tensor:
    """The head's step in several releases from the same data, at a rate where every example takes
    part.
    """
    return torch.stack(
        [
            personal_gradient(p.step(mechanism, LocalTraining(), seed), p.frame)
            for seed in range(count)
        ]
    )


def has_noise(steps: Tensor, mechanism: Mechanism) -> bool:
    """Whether the steps spread as the noise that was charged for does."""
    return bool(steps.std(0).mean() > 0.8 * mechanism.noise_std)


def test_a_head_without_noise_is_caught():
    """Negative control: the head of the same data, trained without noise, does not pass."""
    assert has_noise(heads(with_head(), NOISY, 40), NOISY)
    assert not has_noise(heads(with_head(), CLIP_ONLY, 40), NOISY)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (
            {"compression": Compression(topk_rate=0.1, error_feedback=True), "mechanism": NONE},
            "error feedback",
        ),
        ({"mask": Mask(kind="uniform", sparsity=0.5, ranking="gradients")}, "ranking=gradients"),
        (
            {"mechanism": Mechanism(noise_multiplier=1.0, noise_share=0.5)},
            "trust='aggregate' or 'secure'",
        ),
    ],
)
def test_methods_without_a_true_personal_part_are_refused(parts, why):
    with pytest.raises(ValueError, match=why):
        Method(name="test", carrier=DENSE, personal="classifier", **parts)
