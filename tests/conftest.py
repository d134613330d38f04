"""Tests send SIGINT to programs that they start: in the background, a shell would have it ignored for all of them.

Tests that start processes, and look for those that are left, run one after another in one worker (--dist loadgroup).
"""

import signal

import pytest

STARTS_PROCESSES = ("test_processes.py", "test_flower_processes.py", "test_flower_runtime.py")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """To one worker Ray and everything else that starts processes, these first; other files each to one."""

    def starts_processes(item: pytest.Item) -> bool:
        return item.path.name in STARTS_PROCESSES or item.get_closest_marker("ray") is not None

    for item in items:
        item.add_marker(pytest.mark.xdist_group("processes" if starts_processes(item) else str(item.path)))
    items.sort(key=starts_processes, reverse=True)
