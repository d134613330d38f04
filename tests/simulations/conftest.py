"""Runs that several tests read. Property tests draw the same examples in every run, without a deadline."""

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from tests.simulations.runs import Run, run_local, stopped_after

hypothesis.settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("deterministic")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A run sets torch's thread count for its process; undo it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two clients, two rounds of lsg on the local engine, reproducible, payloads kept. Do not write to it."""
    return run_local(tmp_path_factory.mktemp("runs") / "small", record_updates=True)


@pytest.fixture
def stopped(tmp_path: Path) -> Run:
    """The small run, interrupted after its first round."""
    run = stopped_after(1, tmp_path / "run")
    assert [row.round for row in run.rows] == [1]
    assert not run.directory.summary.exists()
    return run
