"""Models of called layers and of parameters with uses: accepted as they are, refused where they mix
examples.
"""

import pytest
import torch
from torch import Tensor, nn

from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError
from fedlsg.gradients.independence import check_model
from tests.fedlsg.gradients.hooked_pass.test_uses import SOUND, Model
from tests.fedlsg.support.gradient_oracle import squared_error
from tests.fedlsg.support.layer_zoo import ZOO, loss


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", ZOO)
def test_the_zoo_treats_examples_independently(case):
    model, x, y = ZOO[case].build(7, torch.float32)
    check_model(model, loss, [(x, y)])


@pytest.mark.parametrize(
    "case", ["expanded and joined", "through a frozen layer", "linear of a function", "two of them"]
)
def test_uses_of_parameters_are_accepted(case):
    check_model(Model(SOUND[case]), squared_error, [(torch.randn(7, 3, 4), torch.randn(7))])


class Mixed(nn.Module):
    """A model of the zoo with a little of the neighbours' mean in its output, or in its gradient
    alone.
    """

    def __init__(self, model: nn.Module, *, backward: bool) -> None:
        super().__init__()
        self.model, self.backward = model, backward

    def forward(self, x: Tensor) -> Tensor:
        out = self.model(x)
        mean = 1e-3 * out.mean(0, keepdim=True)
        return out + (mean - mean.detach() if self.backward else mean)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "case", ["parameters, words, positions", "tied", "LSTM", "attention", "Conv1d"]
)
def test_what_mixes_is_refused(case, backward):
    model, x, y = ZOO[case].build(7, torch.float32)
    with pytest.raises(UnsupportedLayerError, match="mixes examples"):
        check_model(Mixed(model, backward=backward), loss, [(x, y)])


def test_a_parameter_with_a_row_for_each_place_in_the_batch_is_refused():
    def by_place(m: nn.Module, x: Tensor) -> Tensor:
        return x + m.W[: len(x)].unsqueeze(1).tanh()

    with pytest.raises(
        UnsupportedLayerError, match=r"a row for each place in the batch|fails on a batch"
    ):
        check_model(Model(by_place), squared_error, [(torch.randn(7, 3, 4), torch.randn(7))])
