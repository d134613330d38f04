"""Top-k and the rules of error feedback: the right positions, nothing lost, and nothing where anything is promised."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.payload import check_fits, find_codec
from fedlsg.training.compression import largest
from strategies import recipe

EXACT = st.integers(-(2**20), 2**20).map(lambda n: n / 64)
"""Numbers whose sums float64 holds exactly."""


@given(values=st.lists(EXACT, min_size=1, max_size=30), most=st.integers(1, 30))
@settings(max_examples=200)
def test_the_largest_by_brute_force(values, most):
    got = largest(torch.tensor(values, dtype=torch.float64), most).tolist()
    order = sorted(range(len(values)), key=lambda i: (abs(values[i]), i), reverse=True)
    assert got == sorted(i for i in order[:most] if values[i])


@given(rounds=st.lists(st.lists(EXACT, min_size=6, max_size=6), min_size=1, max_size=9), most=st.integers(1, 6))
@settings(max_examples=100)
def test_what_was_sent_and_the_memory_are_the_gradients(rounds, most):
    """Exactly; and after as many rounds without gradients as there are positions nothing is left."""
    memory, sent = torch.zeros(6).double(), torch.zeros(6).double()
    for gradient in [*rounds, *[[0.0] * 6] * 6]:
        due = memory + torch.tensor(gradient, dtype=torch.float64)
        positions = largest(due, most)
        out = torch.zeros(6).double().index_copy(0, positions, due[positions])
        memory, sent = due - out, sent + out
        assert len(positions) <= most
    assert torch.equal(memory + sent, torch.tensor(rounds, dtype=torch.float64).sum(0))
    assert not memory.any()


@pytest.mark.parametrize(("name", "kind"), itertools.product(["topk", "powersgd"], ["dp", "noise-only", "clip-only"]))
def test_memory_is_refused_where_anything_is_promised(name, kind):
    with pytest.raises(ValueError, match=r"error feedback keeps gradients of the client without noise: .*" + kind):
        recipe(name, mechanism=kind)


@pytest.mark.parametrize(
    ("name", "choices", "why"),
    [
        ("lsg", {"mechanism": "none"}, "carrier 'low-rank' and mask 'units' of 'lsg' a coordinate is not the same"),
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


@pytest.mark.parametrize("name", ["dpsgd", "lsg", "lora", "bitfit", "ffa-lora", "sgd", "topk", "linear-probe"])
def test_one_bit_is_taken(name):
    check_fits(find_codec("sign"), recipe(name))
