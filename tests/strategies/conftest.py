"""Property tests draw the same examples in every run, without a deadline; tests may make Flower messages."""

from collections.abc import Iterator

import hypothesis
import pytest

from simulations.engines.local import task_identity

hypothesis.settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("deterministic")


@pytest.fixture(autouse=True, scope="module")
def identity() -> Iterator[None]:
    """Flower's Message constructor asks who the sender is."""
    with task_identity():
        yield
