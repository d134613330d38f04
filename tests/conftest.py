"""Tests send SIGINT to programs that they start: in the background, a shell would have it ignored for all of them.

Tests that start processes, and look for those that are left, run one after another in one worker (--dist loadgroup).
"""

import signal

import pytest

STARTS_PROCESSES = ("test_processes.py", "test_flower_processes.py", "test_flower_runtime.py")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Groups are handed out in the order of the tests: xdist would begin with the one of most tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def starts_processes(item: pytest.Item) -> bool:
    """Whether a test starts Flower, Ray, or other programs that it looks for afterwards."""
    return item.path.name in STARTS_PROCESSES or item.get_closest_marker("ray") is not None


def pytest_itemcollected(item: pytest.Item) -> None:
    """What starts processes to one worker; the tests of another file together to one."""
    item.add_marker(pytest.mark.xdist_group("processes" if starts_processes(item) else item.path.stem))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first."""
    items.sort(key=starts_processes, reverse=True)
