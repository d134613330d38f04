"""Tests send SIGINT to programs that they start: in the background, a shell would have it ignored for all of them.

With pytest-xdist the tests of a file run in one worker, and those that start Flower and Ray, and look for processes
that are left, all in the same one: they would find each other's.
"""

import signal
from pathlib import PurePath
from typing import Any

import pytest

STARTS_PROCESSES = (
    "test_contract_engines.py", "test_deployment.py", "test_engines.py", "test_flower_processes.py",
    "test_flower_runtime.py", "test_grouped.py", "test_processes.py", "test_replica_flower.py", "test_signed_app.py",
    "test_two_hospitals.py", "test_working_directory.py",
)  # fmt: skip

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Files are handed out in the order of the tests: xdist would begin with the one of most tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first."""
    items.sort(key=lambda item: item.path.name not in STARTS_PROCESSES)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """By file. xdist's own groups (--dist loadgroup) are lost under pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "processes" if PurePath(file).name in STARTS_PROCESSES else file

    return ByFile(config, log)
