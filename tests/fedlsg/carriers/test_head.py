"""A head of two layers, as RoBERTa's: carriers leave its output layer dense; LoRA, probes and groups mean all of it."""

import pytest
import torch
from torch import Tensor, nn

from fedlsg.carriers import find_output_layer

HEAD = "classifier"


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.out_proj = nn.Linear(30, 30), nn.Linear(30, 20)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out_proj(torch.tanh(self.dense(x)))
        return result


def make_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential()
    for name, layer in {"body": nn.Linear(40, 30), "tanh": nn.Tanh(), HEAD: Head()}.items():
        model.add_module(name, layer)
    return model


def test_the_output_layer_is_the_last_linear_of_the_head():
    model = make_model()
    assert find_output_layer(model, HEAD) == find_output_layer(model) == "classifier.out_proj"
    assert find_output_layer(model, "body") == "body"
    assert find_output_layer(model, "tanh") == "tanh"  # a head without a Linear is left alone
    assert find_output_layer(nn.Linear(3, 2)) == find_output_layer(nn.Tanh()) == ""
    with pytest.raises(ValueError, match="classifier='head' is no module"):
        find_output_layer(model, "head")
