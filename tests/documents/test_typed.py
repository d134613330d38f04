"""Types of settings are current, signatures have them, and type checkers see an editable
installation.
"""

import shutil
import subprocess
import sys
import sysconfig
import venv
from inspect import signature
from pathlib import Path
from typing import Unpack, get_args, get_origin

import pytest

from docs._sphinx.typed import INTERNAL, SHARES, explicit, files
from fedlsg import strategies
from fedlsg.simulations.run.run_settings_typed import RunSettings
from fedlsg.simulations.run.simulate import MORE, simulate
from fedlsg.simulations.settings.settings import all_settings
from fedlsg.strategies.method_settings_typed import MethodSettings, StepSettings
from fedlsg.strategies.private_step import PrivateStep
from tests.places import REPOSITORY

SCRIPT = Path(__file__).with_name("strangers_script.py")


WRONG = """
import fedlsg
from torch import nn

fedlsg.simulate(workload="digits", lerning_rate=0.5)
fedlsg.simulate(workload="digits", rank="four")
fedlsg.PrivateStep(nn.Linear(2, 2), nn.CrossEntropyLoss(), num_examples=4, rnk=2)
fedlsg.recipe("lsg", sparsty=0.3)
"""


def test_the_files_are_current():
    """Else: python -m docs._sphinx.typed"""
    for path, text in files().items():
        assert (REPOSITORY / path).read_text() == text, path


def test_every_setting_has_a_type_once():
    known = {*RunSettings.__annotations__, *explicit(simulate)}
    assert known - {*MORE} >= all_settings().keys() - {*INTERNAL}
    assert not {*RunSettings.__annotations__} & {*explicit(simulate)}
    assert not {*StepSettings.__annotations__} & {*explicit(PrivateStep.__init__)}
    own = strategies.common_settings().keys() | strategies.recipe_settings().keys()
    assert {*MethodSettings.__annotations__} == own - {*SHARES}


@pytest.mark.parametrize(
    ("function", "keys"),
    [(PrivateStep.__init__, StepSettings), (strategies.recipe, MethodSettings)],
)
def test_signatures_name_them(function, keys):
    kind = signature(function).parameters["settings"].annotation
    assert get_origin(kind) is Unpack
    assert get_args(kind) == (keys,)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> Path:
    """The Python of a new environment with an editable fedlsg; what that needs is where it is
    already.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
    ]
    subprocess.run(
        [*command, "--no-build-isolation", "-e", str(REPOSITORY)], check=True, capture_output=True
    )
    (hook,) = site.glob("__editable__*")
    assert hook.read_text().strip() == str(REPOSITORY), (
        "a path, which type checkers follow, and no import hook"
    )
    return python


@pytest.mark.slow
def test_an_editable_installation_is_a_path(stranger, tmp_path):
    where = [str(stranger), "-c", "import fedlsg.simulations; print(fedlsg.__file__)"]
    found = subprocess.run(
        where, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert found == str(REPOSITORY / "fedlsg" / "__init__.py")


@pytest.mark.slow
def test_a_strangers_script_is_strictly_typed_and_a_misspelt_setting_is_found(stranger, tmp_path):
    shutil.copyfile(SCRIPT, tmp_path / "script.py")
    (tmp_path / "wrong.py").write_text(WRONG)
    mypy = [str(stranger), "-m", "mypy", "--strict", "--no-error-summary", "script.py", "wrong.py"]
    done = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert {line.partition(":")[0] for line in lines} == {"wrong.py"}, done.stdout
    found = {line.split(":")[1] for line in lines if ": error: " in line}
    assert found == {"5", "6", "7", "8"}, done.stdout
    assert 'did you mean "rank"' in done.stdout
    assert 'did you mean "sparsity"' in done.stdout
    ran = subprocess.run(
        [str(stranger), "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "plot.pdf").exists()
