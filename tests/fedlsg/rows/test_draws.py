"""Random numbers of a row: a function of its key alone, whatever the code seeds itself, and
secret.
"""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import seed as seed_of_python

import numpy as np
import pytest
import torch
from numpy.random import PCG64, RandomState, default_rng
from numpy.random import seed as seed_of_numpy
from torch import manual_seed

from fedlsg.randomness import public_generator, reproducible_stream
from fedlsg.rows import RowDraws, seeds_replaced
from fedlsg.rows.seeds import SEED_PYTHON, seed_process

ONE, TWO = bytes([1] * 16), bytes([2] * 16)
STATES = (
    torch.get_rng_state(),
    random.getstate(),
    np.random.get_state(),
    default_rng(3).bit_generator.state,
)


def drawn(*draw: Callable[[], float]) -> list[float]:
    return [float(part()) for part in draw]


def after(seed: Callable[[], object], draw: Callable[[], float]) -> Callable[[], float]:
    """A draw after a seed of the code's own."""

    def call() -> float:
        seed()
        return draw()

    return call


def in_a_fork() -> float:
    with torch.random.fork_rng():
        manual_seed(0)
        return float(torch.rand(()))


def with_state_of_numpy() -> float:
    generator = default_rng(3)
    generator.bit_generator.state = STATES[3]
    return generator.random()


def by_torch(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))


def torch_rand() -> float:
    return float(torch.rand(()))


WAYS: dict[str, Callable[[], float]] = {
    "torch": torch_rand,
    "python": random.random,
    "numpy": np.random.rand,
    "torch.manual_seed": after(lambda: torch.manual_seed(0), torch_rand),
    "manual_seed, imported before": after(lambda: manual_seed(0), torch_rand),
    "torch.seed, without a number": after(torch.seed, torch_rand),
    "default_generator": after(lambda: torch.default_generator.manual_seed(0), torch_rand),
    "state of torch": after(lambda: torch.set_rng_state(STATES[0]), torch_rand),
    "a fork": in_a_fork,
    "torch.Generator": lambda: by_torch(torch.Generator().manual_seed(0)),
    "random.seed": after(lambda: random.seed(0), random.random),
    "seed of python, imported before": after(lambda: seed_of_python("words"), random.random),
    "state of python": after(lambda: random.setstate(STATES[1]), random.random),
    "random.Random": lambda: random.Random(0).random(),
    "np.random.seed": after(lambda: np.random.seed(0), np.random.rand),
    "seed of numpy, imported before": after(lambda: seed_of_numpy([1, 2]), np.random.rand),
    "state of numpy": after(lambda: np.random.set_state(STATES[2]), np.random.rand),
    "RandomState": lambda: RandomState(0).rand(),
    "default_rng": lambda: default_rng(0).random(),
    "default_rng without a seed": lambda: default_rng().random(),
    "RandomState without a seed": lambda: RandomState().rand(),
    "PCG64": lambda: np.random.Generator(PCG64(5)).random(),
    "SeedSequence": lambda: default_rng(np.random.SeedSequence(5).spawn(2)[1]).random(),
    "state of a bit generator": with_state_of_numpy,
}


def under(key: bytes, call: Callable[[], float], draws: RowDraws | None = None) -> float:
    draws = draws or RowDraws()
    with draws.making():
        draws.begin(key)
        return float(call())


@pytest.mark.parametrize("way", WAYS)
def test_draws_are_a_function_of_the_key(way):
    call = WAYS[way]
    assert under(ONE, call) == under(ONE, call)
    assert under(ONE, call) != under(TWO, call)


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("torch", "python", "numpy")])
def test_without_the_interception_seeds_are_known_or_the_systems(way, monkeypatch):
    """Negative control."""
    monkeypatch.setattr(
        "fedlsg.rows.draws.seeds_replaced", lambda replace: seeds_replaced(lambda *given: None)
    )
    first = under(ONE, WAYS[way])
    assert (under(TWO, WAYS[way]) == first) or ("without" in way and under(ONE, WAYS[way]) != first)


def test_equal_seeds_in_a_row_stay_equal_and_new_ones_differ():
    draws = RowDraws()
    with draws.making():
        draws.begin(ONE)
        assert default_rng(3).random() == default_rng(3).random() != default_rng(4).random()
        assert default_rng().random() != default_rng().random()


def test_generators_that_the_data_hold_are_seeded():
    held = torch.Generator(), random.Random(0), RandomState(0), default_rng(0)
    draws = RowDraws(held=held)

    def numbers() -> float:
        return by_torch(held[0]) + held[1].random() + held[2].rand() + held[3].random()

    assert under(ONE, numbers, draws) == under(ONE, numbers, draws)
    assert under(ONE, numbers) != under(ONE, numbers)  # negative control: as a memory


def test_everything_is_afterwards_as_it_was():
    manual_seed(7), random.seed(7), np.random.seed(7)
    before = drawn(torch_rand, random.random, np.random.rand)
    manual_seed(7), random.seed(7), np.random.seed(7)
    with pytest.raises(KeyError):
        under(ONE, lambda: {}["missing"])
    assert drawn(torch_rand, random.random, np.random.rand) == before
    assert (
        default_rng(0).random()
        == default_rng(0).random()
        == RandomState(np.random.MT19937(0)).rand() * 0
        + float(np.random.Generator(PCG64(0)).random())
    )
    assert type(vars(np.random.PCG64)["state"]).__name__ == "getset_descriptor"


def test_seeds_of_a_users_threads_are_secret_and_those_of_fedlsg_stay_as_they_are():
    with ThreadPoolExecutor(1) as pool:
        known = default_rng(0).random()
        public = public_generator(0, "test").initial_seed()
        draws = RowDraws()
        with draws.making():
            draws.begin(ONE)
            assert pool.submit(lambda: default_rng(0).random()).result() != known
            assert pool.submit(public_generator, 0, "test").result().initial_seed() == public
        assert pool.submit(lambda: default_rng(0).random()).result() == known


def test_seeds_of_the_process_are_those_of_the_public_functions():
    seed, numbers = 2**62 + 12345, (torch_rand, random.random, np.random.rand)
    manual_seed(seed), random.seed(seed), np.random.seed(seed & 0xFFFFFFFF)
    before = drawn(*numbers)
    seed_process(seed)
    assert drawn(*numbers) == before


def test_no_normal_number_of_the_row_before_is_left():
    """Generators make normal numbers in pairs, and keep the second one."""
    ways = [lambda: random.gauss(0, 1), np.random.standard_normal, lambda: float(torch.randn(()))]
    draws = RowDraws()
    with draws.making():
        for way in ways:
            draws.begin(ONE)
            first = way()
            draws.begin(TWO)
            draws.begin(ONE)
            assert way() == first
        draws.begin(ONE)
        random.gauss(0, 1)
        SEED_PYTHON(random._inst, 0)
        assert random._inst.gauss_next is not None, "negative control: a seed alone leaves it"


def test_keys_of_many_rows_are_those_of_one_after_the_other():
    one, many = (RowDraws(reproducible_stream(0, "rows")) for _ in range(2))
    assert [one.next_key() for _ in range(5)] == many.next_keys(2) + many.next_keys(3)


def test_rows_have_keys_of_their_own_and_a_stream_repeats_them():
    keys = [RowDraws().next_key() for _ in range(3)]
    assert len({*keys}) == 3
    one, two = (RowDraws(reproducible_stream(0, "rows")) for _ in range(2))
    assert [one.next_key(), one.next_key()] == [two.next_key(), two.next_key()]
