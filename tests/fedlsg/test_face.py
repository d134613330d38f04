"""The public face: what a user gets from ``import fedlsg``."""

import subprocess
import sys
import textwrap

import pytest

import fedlsg
from tests.places import REPOSITORY


@pytest.mark.parametrize("name", fedlsg.__all__)
def test_every_public_name_is_there_and_documented(name):
    value = getattr(fedlsg, name)
    assert value.__doc__


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'decomposed'"):
        fedlsg.decomposed  # noqa: B018


def test_a_star_import_gives_the_public_names():
    code = "from fedlsg import *; print(sorted(n for n in globals() if n[0] != '_' or n == '__version__'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert eval(done.stdout) == sorted(fedlsg.__all__)


def test_the_import_is_quick():
    """Under 0.3 s where nothing else runs; CPU time is counted, for other processes do run. The least of three."""
    code = "import time; before = time.process_time(); import fedlsg; print(time.process_time() - before)"
    command = [sys.executable, "-c", code]
    seconds = [
        float(subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(seconds) < 0.3


USE = """
    from typing import Any

    import fedlsg
    import numpy as np
    from torch import nn

    own: dict[str, Any] = {"width": 4}
    x, y = np.zeros((9, 4)), np.zeros(9, dtype=int)


    def recipe(*, width: int = 3, mechanism: fedlsg.Mechanism, server: fedlsg.ServerOptimizer) -> fedlsg.Method:
        return fedlsg.Method(name="mine", mechanism=mechanism, server=server)


    def workload() -> fedlsg.Workload:
        return fedlsg.Workload(model=lambda: nn.Linear(4, 3), train=(x, y), test=(x, y), loss=nn.CrossEntropyLoss())


    run: fedlsg.Run = fedlsg.simulate(
        model=lambda: nn.Linear(4, 3), train=(x, y), test=(x, y), loss=nn.CrossEntropyLoss(), method=recipe,
        metrics={"m": lambda outputs, targets: outputs.mean()}, partition=[[0, 1], [2]], rounds=2,
        callbacks=[lambda row: print(row["round"])], engine="local", **own,
    )
    epsilon: float = run.epsilon
    accuracy: float = run.summary["accuracy"]
    model: nn.Module = fedlsg.load_run("runs/here").model
    fedlsg.simulate(workload=workload, rounds=PLANTED, learning_rat=0.5)
"""


def test_the_types_of_the_interface(tmp_path):
    """mypy names the planted mistakes, and finds no other one; with the settings of .ci/run, whose cache it takes."""
    pytest.importorskip("mypy")
    (tmp_path / "use.py").write_text(textwrap.dedent(USE).replace("PLANTED", "'two'"))
    command = [sys.executable, "-m", "mypy", str(tmp_path / "use.py")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.stdout.count("error:") == 2, done.stdout
    line = next(at for at, text in enumerate(textwrap.dedent(USE).splitlines(), 1) if "PLANTED" in text)
    assert f'use.py:{line}: error: Argument "rounds" to "simulate" has incompatible type ' in done.stdout
    assert 'Unexpected keyword argument "learning_rat" for "simulate"' in done.stdout
