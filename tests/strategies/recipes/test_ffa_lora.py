"""FFA-LoRA: with A frozen the average of products is the product of averages, after any number of local steps."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fedlsg.carriers.carrier import Carrier
from fedlsg.carriers.lora import BASE, DOWN, UP, frozen_bases, prepare_model
from fedlsg.gradients.supported import trainable
from fedlsg.masks.mask import Mask
from fedlsg.method import LocalTraining, Method, Schedule, client_step
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.randomness import reproducible_stream
from fedlsg.state.public_state import PublicState
from fedlsg.state.server_state import ServerState
from fedlsg.training.server_optimizer import ServerOptimizer
from fedlsg.training.update import move
from strategies import recipe
from tests.strategies.contract import WIDTH, Data, cnn, data_set, mlp, weighted_loss

CLIENTS, RANK, RATE = 3, 2, 0.5


def model_of(method: Method, make=mlp) -> nn.Module:
    torch.manual_seed(1)
    return prepare_model(make().double(), method.carrier, classifier="classifier", seed=4)


def product(model: nn.Module, path: str = "0") -> Tensor:
    weights = dict(model.named_parameters())
    return weights[path + BASE] + weights[path + UP].flatten(1) @ weights[path + DOWN].flatten(1)


def quiet(seed: int) -> Data:
    """Seven plain examples."""
    data = data_set(seed)
    return Data(torch.nan_to_num(data.inputs, posinf=0).clamp(-9, 9), data.targets.index_fill(1, torch.tensor(1), 1.0))


def round_of(name: str, steps: int, mechanism: str = "none") -> tuple[Tensor, Tensor]:
    """(average of the clients' effective weights, the server's) after two rounds of plain averaging."""
    noise = {"clip_norm": 0.3, "noise_multiplier": 0.1} if mechanism == "dp" else {}
    method = recipe(name, rank=RANK, mechanism=mechanism, learning_rate=RATE, **noise)
    local = LocalTraining(steps=steps, learning_rate=RATE, expected_batch=7.0)
    schedule = Schedule(rounds=2, local_steps=steps)
    model = model_of(method)
    state = ServerState(
        PublicState.start(model, method, schedule, seed=4, classifier="classifier"), divisor=CLIENTS * 7.0
    )
    for round in range(2):
        frame, values, products = state.frame(), [], []
        for client in range(CLIENTS):
            own, data = copy.deepcopy(state.model), quiet(client + 10 * round)
            values.append(client_step(
                own, data.batch, weighted_loss, frame=frame, mechanism=method.mechanism, local=local, num_examples=7,
                sampler=reproducible_stream(1, client), noise=reproducible_stream(2, client), charge=lambda: None,
            ))  # fmt: skip
            parameters = trainable(own)
            move(parameters, frame, values[-1], dict.fromkeys(parameters, -RATE / 7.0))
            products.append(product(own).detach())
        state.finish_round(frame, values)
    return torch.stack(products).mean(0), product(state.model).detach()


@pytest.mark.parametrize("mechanism", ["none", "dp"])
@pytest.mark.parametrize("steps", [1, 4])
def test_the_average_of_products_is_the_product_of_averages(steps, mechanism):
    average, server = round_of("ffa-lora", steps, mechanism)
    torch.testing.assert_close(server, average, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("steps", [1, 4])
def test_lora_averages_factors_and_not_products(steps):
    """Negative control: where A moves, too, the two differ."""
    average, server = round_of("lora", steps)
    assert (server - average).abs().max() > 1e-6


@pytest.mark.parametrize("make", [mlp, cnn])
def test_b_and_the_classifier_are_trained_and_a_is_public(make):
    method = recipe("ffa-lora", rank=RANK)
    model = model_of(method, make)
    names = list(trainable(model))
    assert [name for name in names if not name.startswith("classifier.")] == [p + UP for p in paths(model)]
    assert {"classifier.weight", "classifier.bias"} <= set(names)
    again = model_of(method, make)
    for path in paths(model):
        assert torch.equal(model.get_parameter(path + DOWN), again.get_parameter(path + DOWN))
        assert model.get_parameter(path + DOWN).abs().sum() > 0


def paths(model: nn.Module) -> list[str]:
    return [name.removesuffix(BASE) for name in frozen_bases(model)]


def test_half_of_what_lora_sends_of_a_square_weight():
    sizes = {}
    for name in ("lora", "ffa-lora"):
        model = model_of(recipe(name, rank=RANK))
        sizes[name] = sum(p.numel() for n, p in trainable(model).items() if n.startswith("2."))
    assert sizes == {"lora": 2 * RANK * WIDTH, "ffa-lora": RANK * WIDTH}


def test_a_layer_that_is_called_up_is_no_factor():
    """Gated feed-forward layers are often named so: it is adapted like any other, and its base stays frozen."""
    model = nn.Sequential()
    model.add_module("up", nn.Linear(WIDTH, WIDTH))
    model.add_module("block", nn.Sequential())
    model.block.add_module("up", nn.Linear(WIDTH, 2))  # too narrow to pay
    model.add_module("classifier", nn.Linear(2, 3))
    prepare_model(model, Carrier(kind="lora", rank=RANK, train="up"), classifier="classifier", seed=0)
    assert list(trainable(model)) == ["up.up.weight", "classifier.weight", "classifier.bias"]


def test_refusals():
    with pytest.raises(ValueError, match="needs carrier kind 'lora'"):
        Carrier(train="up")
    with pytest.raises(ValueError, match="both factors"):
        Method(
            name="x", carrier=Carrier(kind="lora", rank=2, train="up"), mask=Mask(kind="units", sparsity=0.5),
            mechanism=Mechanism(), server=ServerOptimizer(),
        )  # fmt: skip
