"""Runs that several tests read, and one Ray for all: a start takes longer than their runs.

Property tests draw the same examples in every run, without a deadline.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from fedlsg.simulations.cli import command_line as cli
from fedlsg.simulations.engines import cluster
from fedlsg.simulations.planning import plan
from fedlsg.simulations.planning.advice import remarks
from fedlsg.simulations.planning.base import run_base
from fedlsg.strategies.own_loop import examples, one_round
from tests.checked_once import check_once
from tests.simulations.support.own import fresh
from tests.simulations.support.runs import Run, pages, run_local, stopped_after

hypothesis.settings.register_profile(
    "deterministic", derandomize=True, deadline=None, database=None
)
hypothesis.settings.load_profile("deterministic")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A run sets torch's thread count for its process; undo it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def forgotten_code() -> Iterator[None]:
    """What a test makes known of its own is unknown to the next one."""
    with fresh():
        yield


@pytest.fixture(autouse=True, scope="module")
def checked_once() -> Iterator[None]:
    """The small models of many runs are equal."""
    with pytest.MonkeyPatch.context() as patch:
        check_once(patch, examples, plan, run_base, one_round, remarks)
        yield


@pytest.fixture(scope="session", autouse=True)
def without_pages() -> Iterator[None]:
    """No run writes report.html but ``small`` and those of a test that asks for ``with_pages``."""
    with pages(written=False):
        yield


@pytest.fixture
def with_pages(without_pages: None) -> Iterator[None]:
    """Runs write report.html, as users' do."""
    with pages(written=True):
        yield


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory, without_pages: None) -> Run:
    """Two clients, two rounds of lsg on the local engine, reproducible, payloads kept. Do not write
    to it.
    """
    with pages(written=True):
        return run_local(tmp_path_factory.mktemp("runs") / "small", record_updates=True)


@pytest.fixture
def stopped(tmp_path: Path) -> Run:
    """The small run, interrupted after its first round."""
    run = stopped_after(1, tmp_path / "run")
    assert [row.round for row in run.rows] == [1]
    assert not run.directory.summary.exists()
    return run


@pytest.fixture
def fedlsg(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Run the command in an empty working directory, on a terminal of some width: (exit status,
    stdout, stderr).
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDLSG_DATA", raising=False)

    def run(*arguments: str, width: int = 100) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "argv", ["fedlsg", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture(scope="session")
def warm() -> Iterator[cluster.Cluster]:
    """A Ray with idle workers that have imported torch."""
    with cluster.starting(several=True) as started:
        started.wait()
        yield started


@pytest.fixture
def on_ray(warm: cluster.Cluster) -> Iterator[cluster.Cluster]:
    """The next run takes that Ray, and leaves it as it is."""
    cluster._AHEAD.append(warm)
    yield warm
    cluster._AHEAD.clear()
