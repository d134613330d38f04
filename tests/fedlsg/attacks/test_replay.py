"""The replayed client against the client itself: equal payloads, and a gradient back to the
candidate.
"""

import pytest
import torch
from torch.testing import assert_close

from fedlsg.attacks.replay import replay
from fedlsg.method import Method
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.training.client_round import LocalTraining
from tests.fedlsg.support.observed import digits, method, mlp, observe
from tests.fedlsg.support.own_methods import CORE, OWN_MASK

OWN = Method(
    name="own", carrier=CORE, mask=OWN_MASK, mechanism=Mechanism(kind="clip-only", clip_norm=0.1)
)
METHODS = [
    OWN,
    "probe",
    "lsg-probe",
    "lsg",
    "rgp",
    "rgp-random",
    "rs",
    "dpsgd",
    "sparse-dpsgd",
    "dp-powersgd",
    "lora",
    "linear-probe",
]
IMAGES, LABELS = digits(3)
SEVERAL = LocalTraining(steps=3, learning_rate=0.5, momentum=0.5, expected_batch=3.0)


def settings_of(name: str | Method) -> dict[str, object]:
    return {"clip": "per-block"} if name == "rs" else {}


@pytest.mark.parametrize(
    "local", [LocalTraining(expected_batch=3.0), SEVERAL], ids=["one step", "three steps"]
)
@pytest.mark.parametrize("name", METHODS, ids=lambda how: getattr(how, "name", how))
def test_it_sends_what_a_client_sends(name, local):
    """Projection, mask, weights of groups, active clip, momentum and moves: all of client_step, to
    rounding.
    """
    how = name if isinstance(name, Method) else method(name, **settings_of(name))
    seen = observe(how, mlp(), IMAGES, LABELS, local=local)
    assert_close(replay(seen, IMAGES, LABELS), seen.values, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "local", [LocalTraining(expected_batch=3.0), SEVERAL], ids=["one step", "three steps"]
)
def test_its_gradient_is_that_of_finite_differences(local):
    seen = observe(method("lsg"), mlp(), IMAGES, LABELS, local=local)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(IMAGES.shape, generator=generator, dtype=torch.float64)
    inputs = IMAGES.clone().requires_grad_()
    weights = torch.randn(seen.frame.kept, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(replay(seen, inputs, LABELS) @ weights, inputs)
    step = 1e-6
    ahead, behind = (
        replay(seen, IMAGES + sign * step * direction, LABELS) @ weights for sign in (1, -1)
    )
    assert (gradient * direction).sum().item() == pytest.approx(
        ((ahead - behind) / (2 * step)).item(), rel=1e-5
    )
