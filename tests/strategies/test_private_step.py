"""PrivateStep is a federation of one client: the same weights, the same ledger, in the hands of a
user's own loop.
"""

import copy
import gc
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedlsg
import fedlsg.strategies.own_loop.one_round
import fedlsg.training.client_round
from fedlsg.carriers import prepare_model
from fedlsg.carriers.powersgd import decode, encode
from fedlsg.method import LocalTraining, Schedule, client_step
from fedlsg.randomness import SecretStream, reproducible_stream
from fedlsg.state import Phase, PublicState, ServerState
from fedlsg.strategies import recipe
from tests.strategies import own_loop
from tests.strategies.own_loop import (
    EXAMPLES,
    PUBLIC,
    RECIPES,
    TERMS,
    batch,
    made,
    private_step,
    terms,
    weights,
)
from tests.strategies.small_federation import PROBES, model

ROUNDS = 6
OWN = (
    "num_examples",
    "sample_rate",
    "steps",
    "noise_multiplier",
    "delta",
    "classifier",
    "seed",
    "example",
    "probe",
)
"""Arguments of a private step that are no settings of a recipe."""


def federation(name: str, rounds: int, pruning_noise: float) -> ServerState:
    """The same by hand: the state of a server, and one client's step of each round."""
    given = terms(**RECIPES[name])
    method = recipe(
        name.split()[0], **{key: value for key, value in given.items() if key not in OWN}
    )
    net = model()
    prepare_model(net, method.carrier, classifier="classifier", seed=5)
    schedule = Schedule(rounds=given["steps"], sample_rate=given["sample_rate"])
    public = PublicState.start(
        net, method, schedule, seed=5, classifier="classifier", source=PROBES
    )
    state = ServerState(
        public, divisor=given["sample_rate"] * EXAMPLES, pruning_inputs=PUBLIC[0][:1]
    )
    local = LocalTraining(
        sample_rate=given["sample_rate"], expected_batch=given["sample_rate"] * EXAMPLES
    )
    spending = fedlsg.strategies.own_loop.loop_account.Spending(
        num_examples=EXAMPLES,
        sample_rate=0.25,
        steps=8,
        epsilon=None,
        noise_multiplier=None,
        delta=None,
    )
    client = spending.terms(given.get("noise_multiplier", 0.0), pruning_noise)
    while state.round < rounds:
        common = state.plan(local)
        plan = common.for_client(client.of(common.phase))
        values = client_step(
            net,
            batch,
            lambda o, t: F.cross_entropy(o, t, reduction="none"),
            frame=plan.frame,
            mechanism=plan.mechanism,
            local=plan.local,
            num_examples=EXAMPLES,
            sampler=reproducible_stream(5, "sampler", 0, plan.round),
            noise=reproducible_stream(5, "noise", 0, plan.round),
            charge=lambda: None,
            scale=plan.scale(public.parameters),
        )
        if plan.phase is Phase.PRUNING:
            state.prune(plan.frame, [values], num_examples=EXAMPLES)
        else:
            values = decode(encode(values, plan.frame), plan.frame)
            state.finish_round(plan.frame, [values], noise_std=plan.noise_std)
    return state


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", RECIPES)
def test_a_step_is_a_round_of_a_federation_of_one_client(name):
    step = made(name)
    for _ in range(ROUNDS):
        step.step(batch)
    by_hand = federation(name, ROUNDS, step._terms.prune_noise_multiplier)
    with step.evaluated() as one, by_hand.evaluated() as other:
        for (key, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q), key
    assert not torch.equal(
        weights(step),
        torch.cat([p.detach().flatten() for p in model().parameters()])[: len(weights(step))],
    )


def test_the_ledger_is_charged_before_the_batch_is_drawn(monkeypatch):
    assert own_loop.charged_before_the_batch_is_drawn(monkeypatch)


def test_a_charge_after_the_batch_is_found(monkeypatch):
    def charge_last(*args, charge, **given):
        values = client_step(*args, charge=lambda: None, **given)
        charge()
        return values

    monkeypatch.setattr(fedlsg.strategies.own_loop.one_round, "client_step", charge_last)
    assert not own_loop.charged_before_the_batch_is_drawn(monkeypatch)


CHECKS = [
    own_loop.noise_is_full,
    own_loop.noise_is_full_in_empty_batches,
    own_loop.noise_is_fresh,
    own_loop.noise_is_where_the_mask_keeps,
    own_loop.the_divisor_is_public,
]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_step_is_private(check):
    assert check()


def test_halved_noise_is_found(monkeypatch):
    honest = fedlsg.training.client_round.add_noise
    monkeypatch.setattr(
        fedlsg.training.client_round, "add_noise", lambda t, m, n: t + (honest(t, m, n) - t) / 2
    )
    assert not own_loop.noise_is_full()
    assert not own_loop.noise_is_full_in_empty_batches()


def test_a_skipped_empty_batch_is_found(monkeypatch):
    honest = fedlsg.training.client_round.add_noise
    monkeypatch.setattr(
        fedlsg.training.client_round, "add_noise", lambda t, m, n: honest(t, m, n) if t.any() else t
    )
    assert not own_loop.noise_is_full_in_empty_batches()


def test_reused_noise_is_found(monkeypatch):
    monkeypatch.setattr(
        fedlsg.strategies.own_loop.one_round, "secret_stream", lambda: SecretStream(bytes(32))
    )
    assert own_loop.noise_is_full()
    assert not own_loop.noise_is_fresh()


def test_a_mask_that_differs_from_the_noise_is_found(monkeypatch):
    honest = fedlsg.strategies.own_loop.one_round.client_step

    def other_mask(*args, **given):
        values = honest(*args, **given)
        return values * (torch.arange(len(values)) % 2)

    monkeypatch.setattr(fedlsg.strategies.own_loop.one_round, "client_step", other_mask)
    assert not own_loop.noise_is_where_the_mask_keeps()


def test_a_divisor_from_the_data_is_found(monkeypatch):
    honest = fedlsg.strategies.own_loop.one_round.client_step

    def mean(net, batch, *args, **given):
        sizes = []
        values = honest(net, lambda rows: sizes.append(len(rows)) or batch(rows), *args, **given)
        return values * TERMS["sample_rate"] * EXAMPLES / sum(sizes)

    monkeypatch.setattr(fedlsg.strategies.own_loop.one_round, "client_step", mean)
    assert not own_loop.the_divisor_is_public()


@pytest.mark.slow
def test_no_key_of_a_stream_outlives_its_step():
    step = private_step(method="dpsgd")
    # of other tests in this process
    before = [held for held in gc.get_objects() if type(held) is SecretStream]
    step.step(batch)
    gc.collect()
    assert not [
        held
        for held in gc.get_objects()
        if type(held) is SecretStream and all(held is not b for b in before)
    ]


def test_draws_of_torch_outside_are_left_alone_and_secret_inside():
    net = nn.Sequential(nn.Linear(12, 10), nn.Dropout(0.5))
    net.add_module("classifier", nn.Linear(10, 3))
    moved = []
    for _ in range(2):
        step = private_step(
            copy.deepcopy(net), method="sgd", noise_multiplier=None, clip_norm=None, sample_rate=1.0
        )
        torch.manual_seed(0)
        before = torch.random.get_rng_state()
        step.step(batch)
        assert torch.equal(torch.random.get_rng_state(), before)
        moved.append(weights(step))
    assert not torch.equal(*moved)  # the same seed outside, other masks of dropout


def by_numpy(x):
    return x + torch.from_numpy(np.random.normal(size=(len(x), 1)))


def by_python(x):
    return x + torch.tensor([[random.gauss()] for _ in x])


@pytest.mark.parametrize("noisy", [by_numpy, by_python])
def test_random_changes_by_python_and_numpy_are_secret(noisy):
    """After a seed that is known, one example less would move the random numbers of all after
    it.
    """
    moved = []
    for _ in range(2):
        step = private_step(method="sgd", noise_multiplier=None, clip_norm=None, sample_rate=1.0)
        np.random.seed(0)
        random.seed(0)
        step.step(lambda rows: (noisy(batch(rows)[0]).float(), batch(rows)[1]))
        moved.append(weights(step))
    assert not torch.equal(*moved)


def test_a_batch_function_that_mixes_is_refused_before_anything_is_charged():
    step = private_step(method="dpsgd")
    with pytest.raises(ValueError, match="the batch function mixes examples"):
        step.step(lambda rows: (batch(rows)[0] - batch(rows)[0].mean(0), batch(rows)[1]))
    assert step._account.ledger.entries == ()
    step.step(batch)


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: torch.optim.SGD(ps, lr=0.3),
        lambda ps: torch.optim.SGD(ps, lr=0.3, momentum=0.9, weight_decay=0.1),
        lambda ps: torch.optim.Adam(ps, lr=0.01),
        lambda ps: torch.optim.AdamW(ps, lr=0.01, weight_decay=0.1),
        lambda ps: torch.optim.RMSprop(ps, lr=0.01),
    ],
)
@pytest.mark.parametrize("method", [pytest.param("lsg", marks=pytest.mark.slow), "lora"])
def test_any_optimizer_steps_by_the_reconstructed_gradient(make, method):
    """The oracle: torch's optimizer on a copy, fed by hand with Eq. 3 of the sums of a
    federation.
    """
    step = private_step(
        method=method, rank=2, learning_rate=None, optimizer=make, reproducible=True
    )
    twin = copy.deepcopy(step.model)
    optimizer = make([p for p in twin.parameters() if p.requires_grad])
    for _ in range(4):
        frame = step._state.frame()
        step.step(batch)
        gradients = {name: p.grad for name, p in step.model.named_parameters() if p.requires_grad}
        for c in frame.coordinates:
            if c.L is not None:  # Eq. 3: nothing outside of the tangent space of (L, R)
                out, into = torch.eye(len(c.L)) - c.L @ c.L.T, torch.eye(c.R.shape[1]) - c.R.T @ c.R
                assert float((out @ gradients[c.name] @ into).norm()) < 1e-5 * float(
                    gradients[c.name].norm()
                )
        for name, p in twin.named_parameters():
            p.grad = gradients[name].clone() if p.requires_grad else None
        optimizer.step()
        for p, q in zip(step.model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(p, q)


def test_a_gradient_of_the_users_own_never_moves_the_model():
    """Frozen parameters in the optimizer, and gradients from an own backward pass."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    step = private_step(
        net,
        learning_rate=None,
        optimizer=optimizer,
        method="linear-probe",
        loss=own_loop.without_gradient,
    )
    frozen = {name: p.detach().clone() for name, p in net.named_parameters() if not p.requires_grad}
    for p in net.parameters():
        p.grad = torch.full_like(p, 1e6)
    step.step(batch)
    assert frozen
    for name, p in net.named_parameters():
        assert float(p.detach().abs().max()) < 1e3
        assert name not in frozen or torch.equal(p, frozen[name])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_step_after_the_last_one_of_a_schedule_is_taken(schedule):
    """Its rate is 0 at the end: a rate of local steps, of which there are none, is not."""
    data = torch.randn(40, 4), torch.randint(0, 3, (40,))
    step = fedlsg.PrivateStep(
        nn.Linear(4, 3),
        nn.CrossEntropyLoss(),
        num_examples=40,
        sample_rate=0.5,
        steps=2,
        method="dpsgd",
        noise_multiplier=1.0,
        delta=1e-5,
        learning_rate=0.1,
        schedule=schedule,
    )
    spent = []
    for _ in range(3):
        step.step(step.batches(data))
        spent.append(step.epsilon())
    assert spent == sorted(spent)
    assert spent[2] > spent[1]


def test_what_is_evaluated_is_in_eval_mode_and_trains_on_as_before():
    step = private_step(method="dpsgd", steps=2)
    modes = [module.training for module in step.model.modules()]
    assert all(modes), "as it trains: the control"
    with step.evaluated() as evaluated:
        assert not any(module.training for module in evaluated.modules())
    assert [module.training for module in step.model.modules()] == modes
