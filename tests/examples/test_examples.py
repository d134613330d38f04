"""Every example runs outside of the repository, with the installed wheel, on both engines."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedlsg
from benchmarks.flower.flower_app import simulate
from tests.places import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
LEAST = {"tensors": 0.6, "image_folder": 0.4, "text_csv": 0.55, "own_loop": 0.6}
"""Accuracies far above guessing (0.1; text_csv 0.5)."""


def run(command: list[str], installed: Path, folder: Path, **more: str) -> str:
    """What a command prints in a folder of its own, with the wheel."""
    env = {**os.environ, "PYTHONPATH": str(installed), **more}
    path = f"{installed / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env={**env, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def accuracy(printed: str) -> float:
    """As a share, of programs that print one or percent."""
    number = float(re.findall(r"accuracy +(\d+\.\d+)", printed)[-1])
    return number / 100 if number > 1 else number


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("tensors", "local"),
        pytest.param("image_folder", "local", marks=pytest.mark.slow),
        pytest.param("text_csv", "local", marks=pytest.mark.slow),
        pytest.param("image_folder", "ray", marks=pytest.mark.slow),
        pytest.param("tensors", "ray", marks=pytest.mark.slow),
        pytest.param("text_csv", "ray", marks=pytest.mark.slow),
    ],
)
def test_an_example_of_simulate(name, engine, installed, tmp_path):
    """All on both engines with ``-m slow``."""
    if name == "text_csv":
        pytest.importorskip("transformers")
    shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
    printed = run([sys.executable, f"{name}.py", engine], installed, tmp_path)
    assert accuracy(printed) > LEAST[name], printed
    assert [path.name for path in tmp_path.glob("runs/*/summary.json")] == ["summary.json"]


@pytest.mark.slow
def test_the_example_of_an_own_loop(installed, tmp_path):
    shutil.copy(EXAMPLES / "own_loop.py", tmp_path)
    printed = run([sys.executable, "own_loop.py"], installed, tmp_path)
    assert accuracy(printed) > LEAST["own_loop"], printed


@pytest.mark.slow
@pytest.mark.ray
def test_the_example_of_a_flower_app(installed, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(installed))
    app = tmp_path / "app"
    shutil.copytree(EXAMPLES / "flower_app", app, ignore=shutil.ignore_patterns("__pycache__"))
    project = app / "pyproject.toml"
    config = project.read_text().replace("num-server-rounds = 10", "num-server-rounds = 3")
    project.write_text(config.replace('out = ""', f"out = '{tmp_path / 'run'}'"))
    status = simulate(app, tmp_path / "flower", nodes=3)
    assert status == "finished:completed", (tmp_path / "flower" / "flower.log").read_text()[-3000:]
    found = fedlsg.load_run(tmp_path / "run")
    assert found.summary["clients"] == 3
    assert found.epsilon == pytest.approx(8.0, rel=1e-3)
    assert (tmp_path / "run" / "final_model.pt").exists()


def test_the_examples_are_short():
    programs = [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("flower_app/*/*.py")]
    assert len(programs) == 9
    # convert_weights reads what others wrote
    for program in set(EXAMPLES.glob("*.py")) - {EXAMPLES / "convert_weights.py"}:
        assert size_of([program]) < 600, program
    assert size_of(EXAMPLES.glob("flower_app/*/*.py")) < 600


def size_of(programs):
    """Nodes of the syntax trees."""
    return sum(len(list(ast.walk(ast.parse(path.read_text())))) for path in programs)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", ["flower_updates", "flower_steps"])
def test_an_app_that_keeps_its_training(name, installed, tmp_path, monkeypatch):
    """Under Flower's own simulation; its ledgers are in the home folder of who runs it."""
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.setenv("HOME", str(tmp_path))
    app, package = tmp_path / "app", name.replace("flower", "digits")
    shutil.copytree(EXAMPLES / name, app, ignore=shutil.ignore_patterns("__pycache__"))
    project = app / "pyproject.toml"
    config = re.sub("num-server-rounds = [0-9]+", "num-server-rounds = 3", project.read_text())
    project.write_text(config.replace('out = "final_model.pt"', f"out = '{tmp_path / 'model.pt'}'"))
    status = simulate(app, tmp_path / "flower", nodes=4)
    log = (tmp_path / "flower" / "flower.log").read_text()
    assert status == "finished:completed", log[-3000:]
    assert (tmp_path / "model.pt").exists()
    ledgers = list((tmp_path / ".local/state" / package.replace("_", "-")).rglob("client-*.jsonl"))
    assert len(ledgers) == 4
    assert "'epsilon': " in log
