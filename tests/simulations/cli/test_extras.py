"""A plain installation runs, and a command that needs an extra names it before it works."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedlsg.simulations.storage import tensorboard_events
from fedlsg.simulations.workloads.images import digits
from tests.places import REPOSITORY

LIBRARIES = ("matplotlib", "pandas", "sklearn", "dp_accounting", "tensorboard")
"""What the extras plots, attacks and tensorboard bring."""
COMMANDS = {
    "report RUN": "plots",
    "export figures RUN --out figures": "plots",
    "compare digits --methods rs --rounds 1 --yes": "plots",
    "inspect RUN": "plots",
    "partition digits --out made": "plots",
    "attack RUN": "attacks",
    "attack RUN --membership": "attacks",
    "audit RUN": "attacks",
}
PLAIN = """
import contextlib, io, json, sys
missing, commands = json.loads(sys.argv[1])
for name in missing:
    sys.modules[name] = None
from fedlsg.simulations.cli.start import main
found = {}
for command in commands:
    sys.argv, printed = ["fedlsg", *command.split()], io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main()
            status = 0
        except SystemExit as ended:
            status = ended.code
    found[command] = [status, " ".join(printed.getvalue().split())]
print(json.dumps(found))
"""


def said_by(commands, folder, missing=LIBRARIES):
    """Exit status and text of commands in a process without these libraries."""
    command = [sys.executable, "-c", PLAIN, json.dumps([missing, commands])]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "400", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_plain_installation_runs_and_names_the_extra_of_what_it_leaves_out(tmp_path):
    run = "run digits --rounds 1 --clients 2 --noise-multiplier 2 --engine local --out here"
    others = [command.replace("RUN", "here") for command in COMMANDS]
    found = said_by([run, "resume here", *others], tmp_path)
    assert found[run][0] == 0, found[run]
    assert found["resume here"][0] == 0
    files = {path.name for path in (tmp_path / "here").iterdir()}
    assert {"report.html", "rounds.csv", "model.safetensors"} <= files
    assert tensorboard_events.EVENTS not in files
    for command, extra in zip(others, COMMANDS.values(), strict=True):
        status, text = found[command]
        assert status, command
        assert f"pip install 'fedlsg[{extra}]'" in text, (command, text)


@pytest.mark.slow
def test_with_the_extras_the_same_commands_work(tmp_path):
    """Negative control of the commands."""
    run = "run digits --rounds 1 --clients 2 --noise-multiplier 2 --engine local --out here"
    found = said_by([run, "report here", "partition digits --out made"], tmp_path, ())
    assert {status for status, _ in found.values()} == {0}, found
    assert (tmp_path / "here" / tensorboard_events.EVENTS).exists()


def test_events_begin_where_tensorboard_is_installed_later(tmp_path, monkeypatch):
    rounds = [(1, {"accuracy": 0.5}), (2, {"accuracy": 0.6})]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorboard", None)
        assert tensorboard_events.append_events(tmp_path, *rounds[0]) == 0
        tensorboard_events.cut_events(tmp_path, 0, rounds[:1])
    assert not list(tmp_path.iterdir())
    tensorboard_events.cut_events(tmp_path, 0, rounds[:1])
    first = (tmp_path / tensorboard_events.EVENTS).stat().st_size
    assert tensorboard_events.append_events(tmp_path, *rounds[1]) > first > 0


def test_the_digits_stay_as_they_are():
    """What the test below compares with scikit-learn, whose import takes seconds."""
    pixels, labels = digits.read()
    assert pixels.shape == (1797, 64)
    digest = hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest()
    assert digest == "65e5b4619795efb40c1082f4c350c049e4ad552200d369b6ae99e21eef5e72c5"


@pytest.mark.slow
def test_the_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    pixels, labels = digits.read()
    theirs, own = load_digits(return_X_y=True)
    assert (pixels == theirs).all()
    assert (labels == own).all()
    assert not (pixels[::-1] == theirs).all()  # negative control


def names_in(file):
    lines = (line.split("#")[0].strip() for line in (REPOSITORY / file).read_text().splitlines())
    return {canonicalize_name(Requirement(line).name) for line in lines if line}


def test_no_library_of_an_extra_is_required():
    theirs = {"matplotlib", "pandas", "scikit-learn", "dp-accounting", "tensorboard"}
    extras = ("plots", "attacks", "tensorboard")
    assert theirs == set().union(*(names_in(f"requirements-{name}.txt") for name in extras))
    assert not theirs & names_in("requirements.txt")
