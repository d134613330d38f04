"""The command line on a user's own files and on packages that offer workloads and methods."""

from pathlib import Path

import pytest

from fedlsg import strategies
from fedlsg.simulations.engines.cluster import Cluster
from fedlsg.simulations.report.terminals.progress import RoundDisplay
from tests.simulations.support.own import MINE, write
from tests.simulations.support.runs import Run

QUICK = ("--engine", "local", "--noise-multiplier", "2", "--reproducible")


@pytest.fixture
def mine(fedlsg, tmp_path) -> Path:
    """In the working directory of the command."""
    return write(tmp_path / "mine.py")


def refused(fedlsg, *arguments: str) -> str:
    """The one line of a command that fails, and leaves no run."""
    status, _, err = fedlsg(*arguments)
    assert status == 1
    assert err.count("\n") == 1
    assert not Path("runs").exists()
    return err


@pytest.mark.slow
def test_a_run_of_a_file_resumes_unless_the_file_has_changed(fedlsg, mine, tmp_path, monkeypatch):
    real, stops = RoundDisplay.on_round, [True]

    def stop(self, row):
        real(self, row)
        if row.round == 2 and stops:
            stops.pop()
            raise KeyboardInterrupt

    monkeypatch.setattr(RoundDisplay, "on_round", stop)
    status, *_ = fedlsg(
        "run",
        "mine.py:workload",
        "--method",
        "mine.py:recipe",
        "--rounds",
        "3",
        *QUICK,
        "--out",
        "here",
    )
    assert status == 130
    write(mine, MINE + "\n# changed\n")
    status, _, err = fedlsg("resume", "here")
    assert (status, err.count("\n")) == (1, 1)
    assert (
        "the code of the run's own method and workload differs from that which this run began with"
        in err
    )
    write(mine)
    status, _, err = fedlsg("resume", "here")
    assert (status, err) == (0, "")
    assert [row.round for row in Run(tmp_path / "here").rows] == [1, 2, 3]


WRONG = {
    "a function of arguments": (
        "run mine.py:rows",
        "rows() missing 2 required positional arguments",
    ),
    "a function of something else": (
        "run mine.py:build",
        "expected a fedlsg.Workload, or a function without argum",
    ),
    "no function": ("run mine.py:W", "expected a fedlsg.Workload"),
    "a module of Python": ("run os:getcwd", "expected a fedlsg.Workload"),
    "a method that is none": (
        "run --method mine.py:build",
        "does not take mechanism and server: a recipe is def",
    ),
    "a shadowed setting of a run": (
        "run --method bad.py:rounds",
        "declares 'rounds', which is a setting of every run",
    ),
    "a shadowed setting of a codec": (
        "run --method bad.py:codec",
        "declares 'noise_floor_step', which is a setting",
    ),
    "an unknown setting": (
        "run --method mine.py:recipe -c widht=2",
        "unknown setting 'widht'; did you mean 'width'?",
    ),
    "a value of another type": ("run --method mine.py:recipe -c width=two", "width"),
}
BAD = '''
def rounds(*, rounds: int = 3, mechanism, server):
    """X."""

def codec(*, noise_floor_step: float = 3.0, mechanism, server):
    """X."""
'''


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line_and_the_next_command_is_fine(case, fedlsg, mine, tmp_path):
    write(tmp_path / "bad.py", BAD)
    command, words = WRONG[case]
    assert words in refused(fedlsg, *command.split(), *QUICK)
    assert strategies.recipe_settings().keys() >= {"rank"}
    assert fedlsg("methods")[0] == 0


@pytest.mark.slow
@pytest.mark.ray
def test_the_workers_of_ray_never_imported_the_file(fedlsg, mine, tmp_path, on_ray: Cluster):
    write(tmp_path / "helper.py", "from torch import nn\ndef layer(a, b): return nn.Linear(a, b)\n")
    write(
        mine,
        MINE.replace("nn.Linear(", "helper.layer(").replace(
            "import fedlsg\n", "import fedlsg\nimport helper\n"
        ),
    )
    names = ("run", "mine.py:workload", "--method", "mine.py:recipe", *QUICK[2:])
    for engine in ("local", "ray"):
        status, _, err = fedlsg(*names, "--engine", engine, "--out", engine)
        assert (status, err) == (0, "")
    assert Run(tmp_path / "ray").weights.equal(Run(tmp_path / "local").weights)


def test_an_error_of_a_callback_names_its_line_and_how_to_continue(fedlsg, tmp_path):
    (tmp_path / "own.py").write_text("def after(row):\n    open('/nowhere/at/all')\n")
    status, out, err = fedlsg(
        "run", "--callbacks", "own.py:after", "--rounds", "2", *QUICK, "--out", "here"
    )
    assert status == 1
    assert out.splitlines()[-1] == f"continue with: fedlsg resume {tmp_path / 'here'}"
    assert err.startswith("fedlsg: error: FileNotFoundError: ")
    assert err.endswith("(own.py, line 2: open('/nowhere/at/all'))\n")
