"""Freed memory is kept: a large tensor that comes later costs no page faults."""

import subprocess
import sys

import pytest

from tests.places import REPOSITORY

PROGRAM = """
import resource, sys, torch
from fedlsg.tensors import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(20_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(min([faults() for _ in range(20)][10:]))
"""


def faults(mode: str) -> int:
    here = REPOSITORY
    run = subprocess.run([sys.executable, "-c", PROGRAM, mode], cwd=here, capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library of other systems decides for itself")
def test_a_large_tensor_gets_the_memory_of_an_earlier_one():
    assert faults("keep") == 0
    assert faults("default") > 30  # negative control: without it every page is asked for again (4 kB or 2 MB each)
