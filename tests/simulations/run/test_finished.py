"""``fedlsg.Run`` and ``fedlsg.load_run``: what can be read of a run, also where its code or data
are gone.
"""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from rich.console import Console
from torch import nn

import fedlsg
from fedlsg import strategies
from fedlsg.simulations import workloads
from fedlsg.simulations.report.terminals.progress import Meter
from fedlsg.user_code import loading
from tests.simulations.support.own import MINE, TEST, fresh, quick, refused, write


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    """A user's file, which no test changes."""
    return write(tmp_path_factory.mktemp("code") / "mine.py")


@pytest.fixture(scope="module")
def finished(mine, tmp_path_factory) -> fedlsg.Run:
    """Two rounds of the workload and the recipe of the file."""
    with fresh():
        return quick(
            tmp_path_factory.mktemp("runs") / "run",
            workload=f"{mine}:workload",
            method=f"{mine}:recipe",
            rounds=2,
        )


def accuracy(model: nn.Module) -> float:
    x, y = torch.tensor(TEST[0], dtype=torch.float32), torch.tensor(TEST[1])
    assert not model.training
    return float((model(x).argmax(1) == y).double().mean())


def new_process() -> None:
    """Forget what this process knows of own code."""
    strategies.forget()
    workloads._GIVEN.clear()
    workloads._MADE.clear()
    loading._FILES.clear()


def test_the_model_has_the_accuracy_of_the_summary(finished):
    assert accuracy(finished.model) == pytest.approx(finished.summary["accuracy"])
    assert accuracy(fedlsg.load_run(finished.directory).model) == pytest.approx(
        finished.summary["accuracy"]
    )


def test_epsilon_is_that_of_the_ledgers(finished):
    assert finished.epsilon == finished.summary["epsilon_max"]


@pytest.mark.parametrize("kind", ["missing", "empty", "a file", "other things"])
def test_a_foreign_folder_is_no_run(kind, tmp_path):
    place = tmp_path / "place"
    if kind == "a file":
        place.write_text("x")
    elif kind != "missing":
        place.mkdir()
    if kind == "other things":
        (place / "notes.txt").write_text("x")
    with pytest.raises((ValueError, OSError), match="place") as error:
        fedlsg.load_run(place)
    assert "\n" not in str(error.value)


def test_a_run_whose_code_is_gone_is_still_read_and_has_no_model(tmp_path):
    mine = write(tmp_path / "gone.py")
    made = quick(tmp_path / "run", workload=f"{mine}:workload", method=f"{mine}:recipe")
    mine.unlink()
    new_process()
    found = fedlsg.load_run(tmp_path / "run")
    assert found.rounds == made.rounds
    assert found.summary["accuracy"] == made.summary["accuracy"]
    assert "gone.py:workload" in repr(found)
    assert found.plot().axes
    with refused("there is no file", "gone.py"):
        found.model  # noqa: B018


def test_a_run_of_code_that_has_changed_has_no_model(tmp_path):
    mine = write(tmp_path / "changed.py")
    quick(tmp_path / "run", workload=f"{mine}:workload")
    write(mine, MINE.replace("nn.Tanh()", "nn.ReLU()"))
    new_process()
    with refused(
        "the code of the run's own workload differs from that which this run began with: restore "
        "the file"
    ):
        fedlsg.load_run(tmp_path / "run").model  # noqa: B018


@pytest.fixture
def cell(monkeypatch):
    """Run code as a cell of a notebook does; gives what it displays, form by form."""
    shown: list[dict[str, object]] = []
    publish = SimpleNamespace(publish=lambda data, **_: shown.append(data), is_publishing=False)
    shell = SimpleNamespace(
        kernel=object(),
        execution_count=0,
        user_ns={},
        display_formatter=DisplayFormatter(),
        display_pub=publish,
    )
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr(InteractiveShell, "initialized", lambda: True)
    monkeypatch.setattr(InteractiveShell, "instance", lambda: shell)

    def run(code: str, **names: object) -> list[dict[str, object]]:
        shown.clear()
        shell.user_ns |= names
        shell.execution_count += 1
        tree = ast.parse(code)
        last = tree.body[-1]
        exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), shell.user_ns)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), shell.user_ns)
            data, _ = shell.display_formatter.format(value)
            shown.extend([data] if data else [])
        else:
            exec(compile(ast.Module([last], []), "cell", "exec"), shell.user_ns)
        return list(shown)

    return run


def test_a_notebook_has_one_line_of_progress(cell):
    console = Console(force_jupyter=True)
    found = cell(
        "for done in range(1, 4):\n    meter.show(done, ('<b>',))",
        meter=Meter(console, 3, what="round", of=lambda done: f"{done:.0f}/3", pause=0.0),
    )
    assert [data["text/plain"].split("  ")[0] for data in found] == [
        "round 1/3",
        "round 2/3",
        "round 3/3",
    ]
    assert all("&lt;b&gt;" in str(data["text/html"]) for data in found)
