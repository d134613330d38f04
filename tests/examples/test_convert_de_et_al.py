"""Checkpoints of De et al. 2022: their logits after conversion, every form of file, and what is refused."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from examples.convert_weights import read_arrays
from tests.places import REPOSITORY
from tests.simulations.support.haiku_wrn import made_params

# --- forms of a file


# --- what is refused


class Hostile:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder),))


def test_a_pickle_cannot_run_code(tmp_path):
    """The control: ``pickle.load`` runs it."""
    file, folder = tmp_path / "w.dill", tmp_path / "made"
    file.write_bytes(pickle.dumps({"params": made_params(0), "extra": Hostile(folder)}))
    with pytest.raises(ValueError, match=r"names posix\.mkdir, which may run code: .* numpy\.savez"):
        read_arrays(file)
    assert not folder.exists()
    pickle.loads(file.read_bytes())
    assert folder.exists()


# --- the program


def program(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The example, run in a folder."""
    command = [sys.executable, str(REPOSITORY / "examples" / "convert_weights.py"), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
