"""A worker that imported the package of another folder trains with nobody's data: Flower hands mods
over as they are, and @app.train by the name of its module.
"""

import sys
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

from fedlsg.simulations.flower_apps import app_code
from tests.simulations.support.own_updates import CLIENTS, Nodes, ledgers, start, wrapped

PACKAGE = "app_of_a_test"
CLIENT = """
import fedlsg.flower
from flwr.clientapp import ClientApp
from tests.simulations.support.own_updates import app_of, build

UPDATE = fedlsg.flower.private_update(build, epsilon=200.0, delta=1e-5, ledger={ledger!r})
NODE = fedlsg.flower.PrivateNode(
    epsilon=200.0, delta=1e-5, least_noise_multiplier=0.1, ledger={ledger!r}
)
trained = app_of()
"""


@pytest.fixture(autouse=True)
def new_process():
    yield
    forget()


def forget() -> None:
    """As in a new process."""
    app_code._of_module.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def imported(folder: Path, ledger: Path, more: str = "") -> ModuleType:
    """The app's client module, imported from a folder."""
    package = folder / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "task.py").write_text(f"CLIP = 1.0{more}\n")
    (package / "client_app.py").write_text(CLIENT.format(ledger=str(ledger)))
    forget()
    sys.path.insert(0, str(folder))
    try:
        return __import__(f"{PACKAGE}.client_app", fromlist=["client_app"])
    finally:
        sys.path.remove(str(folder))


@pytest.mark.parametrize("other", [True, False], ids=["another folder's code", "the same code"])
@pytest.mark.parametrize("door", ["UPDATE", "NODE"])
def test_a_client_with_the_code_of_another_folder_refuses(door, other, tmp_path, caplog):
    first = imported(tmp_path / "first", tmp_path / "ledgers", " + 1" if other else "")
    mod = getattr(imported(tmp_path / "copy", tmp_path / "ledgers"), door)
    data = cloudpickle.dumps(mod)  # as Flower's simulation hands a mod to a worker
    forget()
    sys.modules[PACKAGE] = ModuleType(PACKAGE)
    sys.modules[PACKAGE].__path__ = [str(tmp_path / "first" / PACKAGE)]
    sys.modules[first.__name__] = first
    here = cloudpickle.loads(data)
    grid = Nodes(lambda message, context: here(message, context, first.trained))
    start(wrapped(), grid, rounds=1)
    refused = caplog.text.count("runs the code of another folder")
    assert (refused >= CLIENTS) == other
    if other:
        assert f"{tmp_path / 'first' / PACKAGE} has another task.py" in caplog.text
        assert all(reply.has_error() for reply in grid.replies)
        assert ledgers(tmp_path / "ledgers") == []
    elif door == "UPDATE":
        assert not any(reply.has_error() for reply in grid.replies)


def test_a_script_and_an_app_of_one_folder_are_not_asked(tmp_path):
    assert app_code._of_module("__main__") is None
    made = app_code.AppCode.of_caller()
    assert made is not None
    assert made.module == __name__
    made.check()
