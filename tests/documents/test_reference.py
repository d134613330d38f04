"""The pages of docs/reference are those that the code makes, and leave nothing out."""

import subprocess
import sys

import click
import pytest

import fedlsg
from docs._sphinx.reference.api import GROUPS
from docs._sphinx.reference.commands import STATUS
from docs._sphinx.reference.pages import PAGES
from simulations import workloads
from tests.documents.check_commands import command_line
from tests.places import REPOSITORY

FOLDER = REPOSITORY / "docs" / "reference"
AGAIN = "write it again: python -m docs._sphinx.reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_makes(name):
    assert (FOLDER / f"{name}.md").read_text() == PAGES[name](), AGAIN


def test_there_are_no_other_pages():
    assert {path.stem for path in FOLDER.glob("*.md")} == set(PAGES)


def test_every_public_name_is_described():
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(set(fedlsg.__all__) - {"__version__"})


def test_every_command_and_every_workload_is_described():
    commands, sets = ((FOLDER / f"{name}.md").read_text() for name in ("commands", "workloads"))
    for name, command in command_line().commands.items():
        if command.hidden:
            continue
        section = commands.split(f"## fedlsg {name}\n")[1].split("\n## ")[0]
        options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        assert all(option.opts[0] in section for option in options)
    assert all(f"| `{name}` |" in sets for name in workloads.names())


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "status"), [
    (["--version"], "0"),
    (["run", "-c", "gone=1"], "1"),
    (["run", "--gone"], "2"),
])  # fmt: skip
def test_exit_statuses(arguments, status, tmp_path):
    """130 and 143: tests/simulations/cli/test_app.py and the tests of interrupted runs."""
    command = [sys.executable, "-m", "simulations", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert str(done.returncode) == status
    assert status in STATUS
