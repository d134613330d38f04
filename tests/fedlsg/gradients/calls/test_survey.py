"""Where the examples are: models that hide it, and what is refused because it would be guessed."""

import types
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError, check_supported
from tests.fedlsg.support.gradient_oracle import TOLERANCE, make_frame, naive_error, squared_error

T = 20


class Model(nn.Module):
    """Layers, a table and a buffer of positions under a forward pass of a test."""

    def __init__(self, forward: Callable[["Model", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.head, self.norm = nn.Linear(4, 4), nn.Linear(4, 2), nn.LayerNorm(4)
        self.words, self.places = nn.Embedding(9, 4), nn.Embedding(T, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("positions", torch.randn(T, 4))
        self.route = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.route(self, x).tanh()).mean(1)


def wrong(forward: Callable[[Model, Tensor], Tensor], x: Tensor) -> float:
    model = Model(forward).double()
    y = torch.randn(len(x), dtype=torch.float64)
    return naive_error(
        model, squared_error, x, y, make_frame(model, rank=1, sparsity=0.0, carry=False)
    )


def numbers(batch: int, places: int = T) -> Tensor:
    x = torch.randn(batch, places, 4, dtype=torch.float64)
    x[:, :, 0] = torch.randint(1, 5, (batch, places))
    return x


def whole_codes(m: Model, x: Tensor) -> Tensor:
    if not torch.equal(x[:, 0, 0], x[:, 0, 0].round()):
        raise ValueError("expected a whole code")
    return x * m.scale + m.layer(m.positions)


def in_training(m: Model, x: Tensor) -> Tensor:
    return x * m.scale + (m.layer(m.positions) if m.training else 0)


@pytest.mark.parametrize("batch", [2, T])
@pytest.mark.parametrize("forward", [whole_codes, in_training])
def test_positions_are_no_examples_where_the_survey_sees_less(forward, batch):
    """A model that refuses varied numbers, and a layer that only training calls."""
    assert wrong(forward, numbers(batch)) < TOLERANCE


@pytest.mark.parametrize("places", [1, 3, T])
def test_a_layer_after_a_table_of_positions(places):
    ids = torch.randint(9, (4, places))
    assert (
        wrong(lambda m, i: m.words(i) + m.norm(m.places(torch.arange(i.shape[1]))), ids) < TOLERANCE
    )


def test_a_survey_counts_for_longer_sequences_and_other_parameters():
    model = Model(lambda m, i: m.layer(m.words(i).flatten(0, 1)).view(len(i), -1, 4)).double()
    model.words.requires_grad_(False)
    y = torch.randn(3, dtype=torch.float64)
    for places, trains in ((1, False), (5, False), (5, True)):
        model.words.requires_grad_(trains)
        frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
        assert (
            naive_error(model, squared_error, torch.randint(9, (3, places)), y, frame) < TOLERANCE
        )


def test_positions_that_values_choose_belong_to_no_known_example():
    """Rows of 3 and 1 real tokens are 4 rows, and not two for each example."""
    x = numbers(2, 3)
    x[:, :, 1] = torch.tensor([[1.0, 1, 1], [1, 0, 0]])

    def without_padding(m: Model, x: Tensor) -> Tensor:
        real = x[:, :, 1] > 0
        out = torch.zeros_like(x)
        out[real] = m.layer(x[real])
        return out

    with pytest.raises(
        UnsupportedLayerError, match=r"layer \(Linear\): expected an input whose first dimension"
    ):
        wrong(without_padding, x)


def test_a_model_that_cannot_be_surveyed_is_refused():
    def pairs(m: Model, x: Tensor) -> Tensor:
        if len(x) % 2:
            raise ValueError("expected pairs")
        return x * m.scale

    with pytest.raises(UnsupportedLayerError, match=r"three copies of a row.*expected pairs"):
        wrong(pairs, numbers(4))


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.LayerNorm(4), nn.Conv1d(3, 3, 1)])
def test_a_layer_whose_forward_was_replaced_is_computed_by_its_own(layer):
    torch.manual_seed(0)
    layer.forward = types.MethodType(lambda self, x: type(self).forward(self, x) * 2, layer)
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)).double()
    x, y = torch.randn(3, 3, 4, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    assert (
        naive_error(
            model, squared_error, x, y, make_frame(model, rank=1, sparsity=0.0, carry=False)
        )
        < TOLERANCE
    )


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.Embedding(4, 4), nn.GRU(4, 4)])
def test_a_hook_on_a_parameter_is_refused(layer):
    handle = next(layer.parameters()).register_hook(lambda g: g * 0)
    with pytest.raises(UnsupportedLayerError, match=r"register_hook.*would not run"):
        check_supported(layer)
    handle.remove()
    check_supported(layer)
