"""The public state gives server and clients one frame a round, and the plan of a round follows from
its phase.
"""

import math
from dataclasses import replace

import pytest
import torch

from fedlsg.method import LocalTraining, Schedule
from fedlsg.privacy import Entry, Mechanism
from fedlsg.state import different_terms, each, sizes_of
from fedlsg.state.public_state import PublicState
from fedlsg.state.round_plan import PRUNING_ROUND, ClientTerms, Phase, plan_round
from fedlsg.state.server_state import load_weights
from fedlsg.strategies import recipe
from tests.strategies.small_federation import model, server_state, values_for

SNIP = {"prune": "dp-snip", "prune_rate": 0.4, "prune_clip_norm": 0.25, "learning_rate": 0.1}
LOCAL = LocalTraining(steps=3, momentum=0.5, sample_rate=0.5, microbatch_size=7)
TERMS = ClientTerms(
    num_examples=40, sample_rate=0.25, noise_multiplier=2.0, prune_noise_multiplier=9.0
)


def client_of(name: str, **choices: object) -> PublicState:
    return PublicState.start(
        model(), recipe(name, **choices), Schedule(rounds=10), seed=0, classifier="classifier"
    )


def test_the_plan_of_the_pruning_round():
    state = server_state("dp-ssgd", **SNIP, clip="per-block", clip_norm=4.0)
    plan = state.plan(LOCAL)
    assert (plan.round, plan.phase, state.next_round) == (
        PRUNING_ROUND,
        Phase.PRUNING,
        PRUNING_ROUND,
    )
    assert (plan.mechanism.clip_norm, plan.mechanism.clip) == (0.25, "joint")
    assert plan.local == replace(LOCAL, steps=1, momentum=0.0)
    weights = state.public.parameters
    factors = torch.cat(plan.scale(weights))
    assert torch.equal(
        factors, torch.cat([weights[name].flatten() for name in ("0.weight", "classifier.weight")])
    )
    state.prune(plan.frame, [values_for(plan.frame, 0, 0)], num_examples=9)
    assert (state.next_round, state.plan(LOCAL).phase) == (1, Phase.TRAINING)


def test_the_plan_of_a_training_round():
    state = server_state("lsg")
    plan = state.plan(LOCAL)
    assert (plan.round, plan.phase, plan.mechanism, plan.local) == (
        1,
        Phase.TRAINING,
        state.method.mechanism,
        LOCAL,
    )
    assert plan.frame.digest == state.frame().digest
    assert plan.scale(state.public.parameters) is None


@pytest.mark.parametrize(("round", "rate", "sigma"), [(PRUNING_ROUND, 1.0, 9.0), (1, 0.25, 2.0)])
def test_terms_are_those_of_the_phase(round, rate, sigma):
    method = recipe("dp-ssgd", **SNIP)
    frame = client_of("dp-ssgd", **SNIP).frame(round, updates=0)
    common = plan_round(method, round, frame, LOCAL)
    plan = common.for_client(TERMS.of(common.phase))
    assert (plan.local.sample_rate, plan.mechanism.noise_multiplier) == (rate, sigma)
    assert common.local.sample_rate in (0.5, 1.0)
    entry = Entry(client=0, round=round, attempt=0, **plan.charge(TERMS.num_examples))
    assert (entry.steps, entry.sample_rate, entry.num_examples) == (plan.local.steps, rate, 40)
    assert entry.clip_norm == plan.mechanism.clip_norm
    assert entry.noise_multiplier == plan.mechanism.effective_noise_multiplier(len(frame.blocks))
    assert (
        plan_round(method, round, frame, LOCAL).for_client(TERMS).mechanism.noise_multiplier == 2.0
    ), "control"


def test_noise_of_all_local_steps_by_hand():
    """Momentum 0.5: of three steps' noise the first counts 1.75 times, the second 1.5 times, the
    last once.
    """
    frame = client_of("sgd").frame(1, updates=0)
    method = replace(recipe("dpsgd"), mechanism=Mechanism(noise_multiplier=2.0, clip_norm=3.0))
    plan = plan_round(method, 1, frame, LOCAL)
    assert plan.noise_std == pytest.approx(6.0 * math.hypot(1.75, 1.5, 1.0))


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("lsg", {"rank": 2}),
        ("rgp", {"rank": 2, "warmup": 1}),
        ("sparse-dpsgd", {}),
        ("dp-ssgd", {"prune": "random"}),
        ("dp-ssgd", SNIP),
    ],
)
def test_a_client_derives_the_frame_of_the_server(name, choices):
    server, client = server_state(name, **choices), client_of(name, **choices)
    if server.awaits_pruning:
        frame = server.frame()
        assert client.frame(PRUNING_ROUND, updates=0).digest == frame.digest
        server.prune(frame, [values_for(frame, 0, 0)], num_examples=9)
    for round in (1, 2, 3):
        load_weights(client.model, server.weights)
        frame = server.frame(round)
        assert client.frame(round, updates=server.updates).digest == frame.digest
        server.finish_round(frame, [values_for(frame, 0, round)])


def test_a_client_with_another_seed_or_w_0_derives_another_frame():
    """Negative control of the equality above."""
    server, client = server_state("rgp", rank=2, warmup=1), client_of("rgp", rank=2, warmup=1)
    server.finish_round(server.frame(), [values_for(server.frame(), 0, 1)])
    load_weights(client.model, server.weights)
    wanted = server.frame().digest
    assert client.frame(2, updates=1).digest == wanted
    assert replace(client, seed=1).frame(2, updates=1).digest != wanted
    moved = {
        parameter: W + 1e-3 * torch.ones_like(W).tril() for parameter, W in client.initial.items()
    }
    assert replace(client, initial=moved).frame(2, updates=1).digest != wanted


@pytest.mark.parametrize("choices", [{}, {"prune": "random"}])
def test_a_pruning_round_that_the_method_does_not_have_is_refused(choices):
    with pytest.raises(
        ValueError, match="expected a training round: pruning of method 'dp-ssgd' reads no data"
    ):
        client_of("dp-ssgd", **choices).frame(PRUNING_ROUND, updates=0)


def test_terms_that_clients_share_are_those_of_each():
    def of(size: int) -> ClientTerms:
        return ClientTerms(num_examples=size, sample_rate=1 / size, noise_multiplier=float(size))

    sizes = [3, 5, 3, 3, 7]
    of_size = {size: of(size) for size in sizes}
    for some in (tuple(map(of, sizes)), tuple(of_size[size] for size in sizes)):
        assert list(different_terms(some)) == [of(3), of(5), of(7)]
        assert sizes_of(some) == sizes
        asked: list[int] = []
        assert (
            each(
                some,
                lambda one, asked=asked: asked.append(one.num_examples) or one.noise_multiplier,
            )
            == sizes
        )
    assert asked == [3, 5, 7]
