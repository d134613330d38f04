"""A head of two layers, as RoBERTa's: carriers leave its output layer dense; LoRA, probes and groups mean all of it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import strategies
from fedlsg.carriers import find_output_layer, prepare_model
from fedlsg.method import Schedule
from fedlsg.state import PublicState, ServerState

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


def state_of(method: str, **choices: object) -> ServerState:
    made = strategies.recipe(method, **choices)
    model = prepare_model(make_model(), made.carrier, classifier=HEAD, seed=0)
    public = PublicState.start(model, made, Schedule(rounds=5), seed=0, classifier=HEAD)
    return ServerState(public, divisor=4.0)


def test_the_output_layer_is_the_last_linear_of_the_head():
    model = make_model()
    assert find_output_layer(model, HEAD) == find_output_layer(model) == "classifier.out_proj"
    assert find_output_layer(model, "body") == "body"
    assert find_output_layer(model, "tanh") == "tanh"  # a head without a Linear is left alone
    assert find_output_layer(nn.Linear(3, 2)) == find_output_layer(nn.Tanh()) == ""
    with pytest.raises(ValueError, match="classifier='head' is no module"):
        find_output_layer(model, "head")


def test_a_checkpoint_of_a_version_that_left_the_head_dense_is_refused():
    saved = state_of("lsg", rank=2).state_dict()
    state_of("lsg", rank=2).load_state_dict(saved)
    del saved["carried"]  # as that version wrote it
    with pytest.raises(ValueError, match=r"sends classifier\.dense\.weight uncompressed: continue the run with that"):
        state_of("lsg", rank=2).load_state_dict(saved)
    dense = state_of("dpsgd").state_dict()
    del dense["carried"]
    state_of("dpsgd").load_state_dict(dense)  # nothing differs: it continues
    state = state_of("lsg", rank=2)
    state.public = replace(state.public, carried=("body.weight",))
    with pytest.raises(ValueError, match=r"sends classifier\.dense\.weight in another form"):
        state.load_state_dict(state_of("lsg", rank=2).state_dict())
