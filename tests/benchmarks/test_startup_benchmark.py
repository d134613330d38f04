"""The start's benchmark: what it sees of processes and files, and its tables, on commands that take a second."""

import sys

import pytest

from benchmarks.process_watch import watch

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def spinning(seconds: float) -> str:
    return f"import time\nwhile time.process_time() < {seconds}: pass"


@linux
def test_cpu_seconds_of_children_are_counted_and_of_others_not():
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {spinning(0.6)!r}])"
    seen = watch([sys.executable, "-c", code])
    assert seen.status == 0
    assert 0.5 < seen.cpu < 1.5
    assert len([p for p in seen.processes if p.cpu > 0.4]) == 1
    assert seen.cpu_by(0.0) < 0.1 < seen.cpu_by(seen.wall) <= seen.cpu
    idle = watch(["sleep", "0.3"])  # negative control: this process works on meanwhile
    assert idle.cpu < 0.1 < idle.wall
