"""The example and the document of an own loop do what they say, outside of the repository."""

import os
import re
import subprocess
import sys

import pytest

from tests.places import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "own_loop.py"
DOCUMENT = REPOSITORY / "docs" / "own-loop.md"
OUTPUT = re.compile(r"accuracy (\d+\.\d) %, epsilon (\d\.\d+) at delta 1e-05")


def run(code: str, folder) -> str:
    (folder / "own.py").write_text(code)
    command = [sys.executable, "-W", "error", "own.py"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_the_example_trains_within_its_budget(tmp_path):
    assert len(EXAMPLE.read_text().splitlines()) < 60
    found = OUTPUT.fullmatch(run(EXAMPLE.read_text(), tmp_path).strip())
    assert float(found[1]) > 85
    assert 7.9 < float(found[2]) <= 8.0


def blocks() -> list[str]:
    """The Python blocks of the document that are whole programs, or continue the one before."""
    return re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


def test_the_document_runs_block_by_block(tmp_path):
    """As one program: its first block, then those that continue it."""
    printed = run("\n".join(blocks()), tmp_path)
    assert printed.count("epsilon") >= 1
    assert (tmp_path / "ledger.jsonl").exists()
