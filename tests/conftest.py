"""Tests send SIGINT and SIGHUP to programs that they start: in the background, a shell or nohup
would have them ignored for all of them.

With pytest-xdist the tests of a file run in one worker, and those that start Ray or Flower's
processes, and look for processes that are left, all in the same one: they would find each other's.
"""

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.places import REPOSITORY

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@cache
def starts_processes(file: Path) -> bool:
    """Whether a test of the file has the mark ``ray``. The scheduler knows names of tests, not
    their marks.
    """
    return "pytest.mark.ray" in file.read_text()


def pytest_configure(config: pytest.Config) -> None:
    """Files are handed out in the order of the tests: xdist would begin with the one of most
    tests.
    """
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Nothing that importing makes is garbage: looking for it took 10 of 24 seconds of each
    worker.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first; cases that are thinned out become slow."""
    items.sort(key=lambda item: not starts_processes(item.path))
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("thinned") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for own in cases.values():
        kept = min(own[0].get_closest_marker("thinned").args[0], len(own))
        often = {len(own) * place // kept for place in range(kept)}
        for place, item in enumerate(own):
            if place not in often:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Whatever draws from the generators of the process draws the same in any order of the
    tests.
    """
    import numpy as np
    import torch

    torch.manual_seed(20261)
    np.random.seed(20261)
    random.seed(20261)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """By file. xdist's own groups (--dist loadgroup) are lost under pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "processes" if starts_processes(config.rootpath / file) else file

    return ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def configuration(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Code that tests run is not known to the user who runs them, and no accountant reads what an
    earlier run found.
    """
    os.environ["FEDLSG_HINTS"] = "off"
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("configuration"))


@pytest.fixture(scope="session", autouse=True)
def no_command() -> None:
    """A command that a test calls in this process makes no command of it: the next signal that a
    test sends would end the process some seconds later.
    """
    from fedlsg.simulations.engines import signals

    signals.ending_command = lambda: None


@pytest.fixture(autouse=True)
def registered_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers or permits is forgotten: a run records the code of all layers of its
    process.
    """
    from fedlsg.gradients.calls import registry
    from fedlsg.user_code import permission

    monkeypatch.setattr(permission, "_PERMITTED", {})
    monkeypatch.setattr(registry, "_registered", {})


@pytest.fixture
def own_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings may name code of a user, which is forgotten afterwards."""
    from fedlsg import strategies
    from fedlsg.user_code import loading

    monkeypatch.setattr(loading, "is_permitted", lambda name: True)
    yield
    strategies.forget()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from an sdist, so that the sdist is complete too. Needs an index for setuptools."""
    folder = tmp_path_factory.mktemp("dist")
    copy = folder / "clone"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs")
    shutil.copytree(REPOSITORY, copy, ignore=ignored)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(copy)], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel, for PYTHONPATH; its dependencies are those of this
    environment.
    """
    target = tmp_path_factory.mktemp("installed")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(target),
        str(wheel),
    ]
    subprocess.run(pip, check=True)
    return target
