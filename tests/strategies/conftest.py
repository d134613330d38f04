"""Property tests draw the same examples in every run, without a deadline; tests may make Flower
messages.
"""

from collections.abc import Iterator

import hypothesis
import pytest

from fedlsg.simulations.engines.local import task_identity
from fedlsg.strategies.own_loop import examples, one_round
from tests.checked_once import check_once

hypothesis.settings.register_profile(
    "deterministic", derandomize=True, deadline=None, database=None
)
hypothesis.settings.load_profile("deterministic")


@pytest.fixture(autouse=True, scope="module")
def checked_once() -> Iterator[None]:
    """The small models of many tests are equal."""
    with pytest.MonkeyPatch.context() as patch:
        check_once(patch, examples, one_round)
        yield


@pytest.fixture(autouse=True, scope="module")
def identity() -> Iterator[None]:
    """Flower's Message constructor asks who the sender is."""
    with task_identity():
        yield
