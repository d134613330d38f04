"""What every distance of attacks promises: the truth is a minimum, and a search can start anywhere."""

from dataclasses import replace

import pytest
import torch

from fedlsg.attacks.distances import DISTANCES, Distance, cosine

RECEIVED = torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def measured(distance: Distance, sent: torch.Tensor) -> torch.Tensor:
    parts = [list(values.split(4)) if distance.by_block else values for values in (sent, RECEIVED)]
    return distance.measure(*parts)


def keeps_its_promise(distance: Distance) -> bool:
    alike = [RECEIVED, 3 * RECEIVED] if distance.directions else [RECEIVED]
    nothing = torch.zeros_like(RECEIVED).requires_grad_()
    from_nothing = measured(distance, nothing)
    (gradient,) = torch.autograd.grad(from_nothing, nothing)
    return (
        all(float(measured(distance, sent)) < 1e-12 for sent in alike)
        and float(measured(distance, -RECEIVED)) > 0.1
        and bool(from_nothing.isfinite())
        and bool(gradient.isfinite().all())
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_cosine_of_a_zero_update_is_a_half_and_its_gradient_is_finite_towards_the_target(dtype):
    received = RECEIVED.to(dtype)
    sent = torch.zeros_like(received).requires_grad_()
    distance = cosine(sent, received)
    assert distance.item() == pytest.approx(0.5, rel=1e-6)
    (gradient,) = torch.autograd.grad(distance, sent)
    tiny = torch.finfo(dtype).tiny ** 0.5
    assert gradient.isfinite().all()
    torch.testing.assert_close(gradient * tiny, -received / received.norm())


def test_the_cosine_of_a_right_angle_is_one():
    across = torch.tensor([0.0, 2.0], dtype=torch.float64)
    assert cosine(across, torch.tensor([3.0, 0.0], dtype=torch.float64)).item() == 1.0


@pytest.mark.parametrize("name", DISTANCES)
def test_the_private_batch_is_a_minimum_and_a_search_can_start_from_nothing(name):
    assert keeps_its_promise(DISTANCES[name])


@pytest.mark.parametrize(
    "planted",
    [
        Distance(measure=lambda sent, received: 0.3 + (sent - received).square().sum()),
        Distance(measure=lambda sent, received: 1 - sent @ received / sent.norm()),
        replace(DISTANCES["euclidean"], directions=True),
        Distance(measure=lambda sent, received: 0 * sent.sum()),
    ],
    ids=["0.3 at the truth", "divides by a length of 0", "is not blind to length", "sees nothing"],
)
def test_a_distance_that_breaks_it_is_seen(planted):
    assert not keeps_its_promise(planted)
