"""FedProx against autograd of its objective; top-k and error feedback: nothing lost."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlsg.masks.mask import Mask
from fedlsg.method import LocalTraining, largest
from fedlsg.payload import check_fits, find_codec
from fedlsg.strategies import recipe
from fedlsg.training import accumulated_noise, norm_bound
from tests.fedlsg.support.step_oracle import (
    CLIP_ONLY,
    DENSE,
    EMPTY,
    EXACT,
    EXAMPLES,
    FRAMES,
    NOISY,
    NONE,
    Problem,
    dense_gradients,
    eq3,
    problem,
    project_and_keep,
)

LOCAL = LocalTraining(steps=4, learning_rate=0.7, expected_batch=5.5, proximal=0.6)


def proximal_sgd(p: Problem, local: LocalTraining) -> dict[str, Tensor]:
    """Local change of the weights: torch's SGD on loss + mu/2 |W - W_t|^2, the loss' gradient seen
    through the frame.

    The second term is differentiated by autograd, in the weights.
    """
    model = copy.deepcopy(p.model)
    start = {n: w.detach().clone() for n, w in p.model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=local.learning_rate, momentum=local.momentum)
    for _ in range(local.steps):
        total = sum(
            project_and_keep(dense_gradients(p, model, i), p.frame) for i in range(EXAMPLES)
        )
        lifted = eq3(total / local.expected_batch, p.frame)
        optimizer.zero_grad()
        (
            local.proximal
            / 2
            * sum((w - start[n]).square().sum() for n, w in model.named_parameters())
        ).backward()
        for name, w in model.named_parameters():
            w.grad += lifted[name]
        optimizer.step()
    return {name: (w - start[name]).detach() for name, w in model.named_parameters()}


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("name", ["dpsgd", "lsg", "rs", "core"])
@pytest.mark.parametrize("path", ["plain", "general"])
def test_local_steps_descend_on_the_proximal_objective(path, name, momentum):
    """``plain``: without clip, noise or mask, where the step has a way of its own."""
    p, local = problem(*FRAMES[name]), replace(LOCAL, momentum=momentum)
    got = p.step(NONE if path == "plain" else replace(CLIP_ONLY, clip_norm=1e6), local)
    wanted = proximal_sgd(p, local)
    for parameter, gradient in p.frame.gradients(got).items():
        torch.testing.assert_close(-0.7 / 5.5 * gradient, wanted[parameter], **EXACT)


def test_the_objective_without_the_term_is_another_one():
    """Negative control, of the term, of its sign and of its scale."""
    p, wanted = problem(Mask(), DENSE), proximal_sgd(problem(Mask(), DENSE), LOCAL)
    name = next(iter(wanted))
    for other in (0.0, 0.3, 1.2):
        moved = p.frame.gradients(p.step(NONE, replace(LOCAL, proximal=other)))[name] * (-0.7 / 5.5)
        assert not torch.allclose(moved, wanted[name], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_deviation_is_that_of_a_real_step(momentum):
    p = problem()
    local = replace(EMPTY, steps=5, momentum=momentum, learning_rate=0.5, proximal=0.8)
    noise = torch.cat([p.step(NOISY, local, seed) for seed in range(200)])
    claimed = accumulated_noise(NOISY.noise_std, 5, momentum, local.pull)
    assert float(noise.std()) == pytest.approx(claimed, rel=0.03)
    # so the test would see the term left out
    assert claimed < 0.8 * accumulated_noise(NOISY.noise_std, 5, momentum)


def test_an_honest_payload_is_within_its_bound():
    p, local = problem(), replace(LOCAL, momentum=0.5)
    bound = norm_bound(CLIP_ONLY, p.frame, num_examples=EXAMPLES, local=local)
    assert (
        p.step(CLIP_ONLY, local).norm()
        <= bound
        < norm_bound(CLIP_ONLY, p.frame, num_examples=EXAMPLES, local=replace(local, proximal=0.0))
    )


def test_a_term_that_diverges_is_refused():
    with pytest.raises(ValueError, match="expected 0 <= proximal \\* local_learning_rate"):
        LocalTraining(steps=2, learning_rate=0.5, proximal=4.0)
    assert LocalTraining(steps=2, momentum=0.5, learning_rate=0.5, proximal=4.0).single().pull == 0


EXACT_VALUES = st.integers(-(2**20), 2**20).map(lambda n: n / 64)
"""Numbers whose sums float64 holds exactly."""


@given(values=st.lists(EXACT_VALUES, min_size=1, max_size=30), most=st.integers(1, 30))
@settings(max_examples=200)
def test_the_largest_by_brute_force(values, most):
    got = largest(torch.tensor(values, dtype=torch.float64), most).tolist()
    order = sorted(range(len(values)), key=lambda i: (abs(values[i]), i), reverse=True)
    assert got == sorted(i for i in order[:most] if values[i])


@given(
    rounds=st.lists(st.lists(EXACT_VALUES, min_size=6, max_size=6), min_size=1, max_size=9),
    most=st.integers(1, 6),
)
@settings(max_examples=100)
def test_what_was_sent_and_the_memory_are_the_gradients(rounds, most):
    """Exactly; and after as many rounds without gradients as there are positions nothing is
    left.
    """
    memory, sent = torch.zeros(6).double(), torch.zeros(6).double()
    for gradient in [*rounds, *[[0.0] * 6] * 6]:
        due = memory + torch.tensor(gradient, dtype=torch.float64)
        positions = largest(due, most)
        out = torch.zeros(6).double().index_copy(0, positions, due[positions])
        memory, sent = due - out, sent + out
        assert len(positions) <= most
    assert torch.equal(memory + sent, torch.tensor(rounds, dtype=torch.float64).sum(0))
    assert not memory.any()


@pytest.mark.parametrize(
    ("name", "kind"), itertools.product(["topk", "powersgd"], ["dp", "noise-only", "clip-only"])
)
def test_memory_is_refused_where_anything_is_promised(name, kind):
    with pytest.raises(
        ValueError, match=r"error feedback keeps gradients of the client without noise: .*" + kind
    ):
        recipe(name, mechanism=kind)


@pytest.mark.parametrize(
    ("name", "choices", "why"),
    [
        (
            "lsg",
            {"mechanism": "none"},
            "carrier 'low-rank' and mask 'units' of 'lsg' a coordinate is not the same",
        ),
        ("rs", {"mechanism": "none"}, "mask 'uniform'"),
        ("rgp-random", {"mechanism": "none"}, "carrier 'random'"),
        ("dp-ssgd", {"mechanism": "none", "drop": "none"}, "prune='synflow'"),
        ("dp-powersgd", {}, "sends factors"),
        ("powersgd", {}, "sends factors"),
        ("rs", {"ranking": "gradients"}, "ranks by them"),
        ("dp-ssgd", {"prune": "dp-snip"}, "ranks by them"),
    ],
)
def test_one_bit_is_refused_by_name(name, choices, why):
    with pytest.raises(ValueError, match=why):
        check_fits(find_codec("sign"), recipe(name, **choices))


@pytest.mark.parametrize(
    "name", ["dpsgd", "lsg", "lora", "bitfit", "ffa-lora", "sgd", "topk", "linear-probe"]
)
def test_one_bit_is_taken(name):
    check_fits(find_codec("sign"), recipe(name))
