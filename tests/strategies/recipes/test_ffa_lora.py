"""FFA-LoRA, FedSVD, Fed-SB: the average of products is the product of averages, after any number of
local steps.
"""

import copy

import pytest
import torch
from torch import Tensor, nn

from fedlsg.carriers import prepare_model
from fedlsg.carriers.lora import BASE, CORE, DOWN, UP, effective_weight, frozen_bases
from fedlsg.gradients.hooked_pass.supported import trainable
from fedlsg.method import LocalTraining, Method, Schedule, client_step
from fedlsg.randomness import reproducible_stream
from fedlsg.state.public_state import PublicState
from fedlsg.state.server_state import ServerState
from fedlsg.strategies import recipe
from tests.strategies.contract import Data, cnn, data_set, mlp, weighted_loss

CLIENTS, RANK, RATE = 3, 2, 0.5


def model_of(method: Method, make=mlp) -> nn.Module:
    torch.manual_seed(1)
    return prepare_model(make().double(), method.carrier, classifier="classifier", seed=4)


def product(model: nn.Module, path: str = "0") -> Tensor:
    weights = dict(model.named_parameters())
    return effective_weight(path, weights, weights, 1.0)


def quiet(seed: int) -> Data:
    """Seven plain examples."""
    data = data_set(seed)
    return Data(
        torch.nan_to_num(data.inputs, posinf=0).clamp(-9, 9),
        data.targets.index_fill(1, torch.tensor(1), 1.0),
    )


def round_of(name: str, steps: int, mechanism: str = "none") -> tuple[Tensor, Tensor]:
    """(average of the clients' effective weights, the server's) after two rounds of plain
    averaging.
    """
    noise = {"clip_norm": 0.3, "noise_multiplier": 0.1} if mechanism == "dp" else {}
    method = recipe(name, rank=RANK, mechanism=mechanism, learning_rate=RATE, **noise)
    local = LocalTraining(steps=steps, learning_rate=RATE, expected_batch=7.0)
    schedule = Schedule(rounds=2, local_steps=steps)
    model = model_of(method)
    state = ServerState(
        PublicState.start(model, method, schedule, seed=4, classifier="classifier"),
        divisor=CLIENTS * 7.0,
    )
    for round in range(2):
        frame, values, products = state.frame(), [], []
        for client in range(CLIENTS):
            own, data = copy.deepcopy(state.model), quiet(client + 10 * round)
            values.append(
                client_step(
                    own,
                    data.batch,
                    weighted_loss,
                    frame=frame,
                    mechanism=method.mechanism,
                    local=local,
                    num_examples=7,
                    sampler=reproducible_stream(1, client),
                    noise=reproducible_stream(2, client),
                    charge=lambda: None,
                )
            )
            parameters = trainable(own)
            frame.add_to(parameters, values[-1], dict.fromkeys(parameters, -RATE / 7.0))
            products.append(product(own).detach())
        state.finish_round(frame, values)
    return torch.stack(products).mean(0), product(state.model).detach()


@pytest.mark.parametrize("name", ["ffa-lora", "fed-sb", "fed-svd"])
@pytest.mark.parametrize("mechanism", ["none", "dp"])
@pytest.mark.parametrize("steps", [1, 4])
def test_the_average_of_products_is_the_product_of_averages(steps, mechanism, name):
    average, server = round_of(name, steps, mechanism)
    torch.testing.assert_close(server, average, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize(("name", "trained"), [("ffa-lora", UP), ("fed-svd", UP), ("fed-sb", CORE)])
def test_one_factor_and_the_classifier_are_trained_and_the_rest_is_public(name, trained, make):
    method = recipe(name, rank=RANK)
    model, plain = model_of(method, make), model_of(recipe("dpsgd"), make)
    names = list(trainable(model))
    assert [name for name in names if not name.startswith("classifier.")] == [
        p + trained for p in paths(model)
    ]
    assert {"classifier.weight", "classifier.bias"} <= set(names)
    again = model_of(method, make)
    for path in paths(model):
        A = model.get_parameter(path + DOWN)
        assert torch.equal(A, again.get_parameter(path + DOWN))
        assert A.abs().sum() > 0
        # nothing changes at the start
        assert torch.equal(product(model, path), plain.get_parameter(f"{path}.weight"))
        if name != "ffa-lora":
            torch.testing.assert_close(
                A.flatten(1) @ A.flatten(1).mT, torch.eye(RANK).to(A), rtol=0, atol=1e-6
            )


def paths(model: nn.Module) -> list[str]:
    return [name.removesuffix(BASE) for name in frozen_bases(model)]
