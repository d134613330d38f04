"""The server's state: what a round does to it, and that a checkpoint holds all of it."""

import io

import pytest
import torch
from torch import nn

from fedlsg.method import Schedule, aggregate
from fedlsg.state.public_state import PublicState
from fedlsg.state.server_state import _as_sent, load_weights
from fedlsg.strategies import recipe
from fedlsg.tensors import AT_ONCE
from tests.strategies.small_federation import model, server_state, values_for


def advance(state, rounds: int) -> None:
    for _ in range(rounds):
        frame = state.frame()
        state.finish_round(
            frame, [values_for(frame, client, state.round + 1) for client in range(3)]
        )


def through_a_file(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_round_by_hand():
    """Sum, divide by the constant, Eq. 3, momentum: two rounds of heavy-ball SGD."""
    state = server_state(divisor=4.0)
    weights = {name: p.detach().clone() for name, p in state.model.named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in weights.items()}
    for round in (1, 2):
        frame = state.frame()
        updates = [values_for(frame, client, round) for client in range(3)]
        gradients = frame.gradients((updates[0] + updates[1] + updates[2]) / 4.0)
        state.finish_round(frame, updates)
        for name, p in state.model.named_parameters():
            velocity[name] = 0.9 * velocity[name] + gradients[name]
            weights[name] = weights[name] - 0.5 * velocity[name]
            torch.testing.assert_close(p.detach(), weights[name])
    assert (state.round, state.updates) == (2, 2)


def test_the_divisor_does_not_know_how_many_answered():
    all_, some = server_state("dpsgd", learning_rate=1.0), server_state("dpsgd", learning_rate=1.0)
    frame = all_.frame()
    one = values_for(frame, 0, 1)
    start = all_.weights
    all_.finish_round(frame, [one, one, one])
    some.finish_round(frame, [one])
    torch.testing.assert_close(
        all_.weights - start, 3 * (some.weights - start), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    ("method", "choices"),
    [
        ("lsg", {}),
        ("lsg", {"optimizer": "adam", "momentum": 0.0, "schedule": "linear"}),
        ("lsg", {"optimizer": "Adagrad", "momentum": 0.0, "schedule": "linear"}),
        ("lsg", {"optimizer": "NAdam", "momentum": 0.0, "optimizer_options": "betas=0.8 0.9"}),
        ("dpsgd", {"optimizer": "Yogi", "schedule": "linear"}),
        ("rgp", {"rank": 2, "warmup": 2, "momentum": 0.5}),
        ("rgp-random", {"rank": 2}),
        ("rs", {"sparsity": 0.5}),
        ("sgd", {"schedule": "exponential", "learning_rate": 0.1, "final_learning_rate": 0.01}),
    ],
)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_checkpoint_holds_everything(method, choices, at):
    unbroken, first, second = (server_state(method, **choices) for _ in range(3))
    advance(unbroken, 5)
    advance(first, at)
    second.load_state_dict(through_a_file(first.state_dict()))
    assert second.frame().digest == first.frame().digest
    advance(second, 5 - at)
    assert second.weights.equal(unbroken.weights)
    assert (second.round, second.updates) == (unbroken.round, unbroken.updates)


@pytest.mark.parametrize("count", [0, 162, 164])
def test_weights_of_another_model_are_refused(count):
    with pytest.raises(ValueError, match=r"expected 163 weights, got shape .*the models differ"):
        load_weights(model(), torch.zeros(count))


def test_models_that_cannot_be_private_are_refused():
    mixing = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="BatchNorm1d"):
        PublicState.start(mixing, recipe("dpsgd"), Schedule(rounds=1), seed=0, classifier=None)
    with pytest.raises(ValueError, match="rank=9 carries no layer"):
        server_state(rank=9)


def test_a_divisor_that_is_no_positive_number_is_refused():
    for divisor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="divisor"):
            advance(server_state(divisor=divisor), 1)


def test_the_sum_does_not_depend_on_a_lucky_order():
    """aggregate() is in float64: another order changes nothing in float32."""
    frame = server_state().frame()
    updates = [values_for(frame, client, 1) for client in range(5)]
    torch.testing.assert_close(aggregate(updates), aggregate(updates[::-1]), rtol=1e-14, atol=1e-14)


def test_the_average_of_the_weights_by_hand_and_through_a_checkpoint():
    """decay = min(ema, (1 + t) / (10 + t)): De et al. 2022's warm-up of the moving average."""
    state = server_state(ema=0.25)
    average = state.weights.clone()
    for update in (1, 2, 3):
        advance(state, 1)
        decay = min(0.25, (1 + update) / (10 + update))
        average = decay * average + (1 - decay) * state.weights
    current = state.weights.clone()
    with state.evaluated() as evaluated:
        torch.testing.assert_close(
            torch.cat([p.detach().flatten() for p in evaluated.parameters()]), average
        )
    assert state.weights.equal(current)
    other = server_state(ema=0.25)
    other.load_state_dict(through_a_file(state.state_dict()))
    assert other.average.equal(state.average)
    assert server_state().average is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_sum_is_rounded_in_pieces_as_it_is_as_a_whole(dtype):
    """Bit for bit: a replica steps by numbers that were rounded as a whole."""
    generator = torch.Generator().manual_seed(0)
    total = torch.randn(2 * AT_ONCE + 3, generator=generator, dtype=torch.float64)
    before = total.clone()
    found = _as_sent(total, 48.5, dtype)
    assert torch.equal(found, (before / 48.5).to(dtype).double() * 48.5)
    assert torch.equal(total, before)
