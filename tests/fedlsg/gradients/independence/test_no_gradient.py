"""What has no gradient: a loss, which is refused before a charge, and an empty parameter, which is
no fault.
"""

import pytest
import torch
from torch import nn

from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError
from fedlsg.gradients.independence import check_model
from tests.fedlsg.support.gradient_oracle import cross_entropy
from tests.fedlsg.support.mixers import CLASSES, TOKENS, WIDTH, tokens_model

BATCH = torch.randn(7, TOKENS, WIDTH), torch.randint(CLASSES, (7,))


def test_a_loss_without_a_gradient_is_named():
    """A step would be charged for noise alone."""
    for loss_fn in (
        lambda o, t: cross_entropy(o.detach(), t),
        lambda o, t: (o.argmax(-1) != t).to(o.dtype),
    ):
        with pytest.raises(
            UnsupportedLayerError, match=r"^the loss function: its losses have no gradient"
        ):
            check_model(tokens_model(), loss_fn, [BATCH])
    check_model(tokens_model(), lambda o, t: cross_entropy(o, t) * 0, [BATCH])


def test_a_parameter_without_rows_is_no_fault():
    model = tokens_model()
    model.register_parameter("empty", nn.Parameter(torch.zeros(0, 3)))
    check_model(model, cross_entropy, [BATCH])
