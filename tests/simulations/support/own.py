"""Code and data of a user's own for tests: three classes that a small network can learn, files with
recipes.
"""

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedlsg
from fedlsg import strategies, user_code
from fedlsg.simulations import workloads
from fedlsg.simulations.workloads.base import LoadedWorkload, Options, Request, silent
from fedlsg.user_code import loading, permission
from tests.places import REPOSITORY

WIDTH, CLASSES = 8, 3
QUICK: dict[str, Any] = {
    "engine": "local",
    "method": "dpsgd",
    "clients": 2,
    "rounds": 1,
    "sample_rate": 0.2,
    "noise_multiplier": 2.0,
    "quiet": True,
    "reproducible": True,
}
"""Settings of a run of a tenth of a second."""


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (count, 8) float64 and classes (count,) uint8."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, WIDTH))
    return x, (x @ np.random.default_rng(0).normal(size=(WIDTH, CLASSES))).argmax(1).astype(
        np.uint8
    )


TRAIN, TEST = rows(60, 1), rows(24, 2)


def build() -> nn.Module:
    """A network that takes the rows."""
    return nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, CLASSES))


def workload(**changes: Any) -> fedlsg.Workload:
    """The rows and the network as a workload, with changes."""
    return fedlsg.Workload(
        **{"model": build, "train": TRAIN, "test": TEST, "loss": nn.CrossEntropyLoss(), **changes}
    )


def load(made: fedlsg.Workload, **options: Any) -> LoadedWorkload:
    """The loaded form, as a run makes it."""
    return made.load(
        Request(
            data_dir=None,
            cache_dir=None,
            options=Options(**options),
            progress=silent,
            public_only=False,
        )
    )


def quick(out: Path, **changes: Any) -> fedlsg.Run:
    """A quick run of the rows, or of ``workload=``; settings and arguments may be changed."""
    own = (
        {}
        if "workload" in changes
        else {"model": build, "train": TRAIN, "test": TEST, "loss": nn.CrossEntropyLoss()}
    )
    return fedlsg.simulate(**{**own, **QUICK, "out": out, **changes})


MINE = '''
import numpy as np
import pytest
import fedlsg
from torch import nn

W = np.random.default_rng(0).normal(size=(8, 3))

def rows(count, seed):
    x = np.random.default_rng(seed).normal(size=(count, 8))
    return x, (x @ W).argmax(1)

def build():
    return nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))

def workload():
    return fedlsg.Workload(model=build, train=rows(60, 1), test=rows(24, 2), loss=nn.CrossEntropyLoss(),
                           settings={"clients": 3, "rounds": 1, "sample_rate": 0.2})

def recipe(*, width: int = 2, mechanism, server):
    """Dense, and wide."""
    return fedlsg.Method(name="mine", carrier=fedlsg.recipe("rgp-random", rank=width).carrier,
                         mechanism=mechanism, server=server)
'''
"""A user's file with a workload and a recipe."""


def write(path: Path, text: str = MINE) -> Path:
    """A file of Python code."""
    path.write_text(textwrap.dedent(text))
    return path


@contextmanager
def fresh() -> Iterator[None]:
    """No code of a user's own is loaded or permitted inside, and nothing of it afterwards."""
    before, path = dict(permission._PERMITTED), list(sys.path)
    try:
        _forget({})
        yield
    finally:
        _forget(before)
        sys.path[:] = path


def _forget(permitted: dict[str, str]) -> None:
    strategies.forget()
    workloads._GIVEN.clear()
    workloads._MADE.clear()
    for module in user_code.modules_of_files():
        if not Path(str(module.__file__)).is_relative_to(REPOSITORY):
            sys.modules.pop(module.__name__, None)
    loading._FILES.clear()
    permission._PERMITTED.clear()
    permission._PERMITTED.update(permitted)


@contextmanager
def refused(*words: str, error: type[Exception] = ValueError) -> Iterator[None]:
    """What is inside is refused in one line that has these words."""
    with pytest.raises(error) as found:
        yield
    text = str(found.value)
    assert "\n" not in text, text
    assert [word for word in words if word not in text] == [], text
