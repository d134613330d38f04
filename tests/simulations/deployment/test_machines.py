"""The machines of a federation's tests: each keeps to itself, ends its processes, and notices what it shares."""

from pathlib import Path

import pytest

from tests.simulations.deployment.test_two_hospitals import no_folder_is_shared
from tests.simulations.support.machines import CommandError, machines


@pytest.fixture
def made(tmp_path: Path):
    with machines(tmp_path, "server", "north", "south", ports={"9092": 39094, "9094": 39092}) as made:
        yield made


def test_a_command_that_fails_is_an_error_that_shows_what_it_printed(made):
    with pytest.raises(CommandError, match="status 3"):
        made["north"].run("echo why\nexit 3")


def test_a_folder_of_another_machine_is_noticed(made):
    no_folder_is_shared(made)
    (made["server"].home / "log").write_text(f"the ledger is in {made['north'].home}/federation/ledger")
    with pytest.raises(AssertionError, match="server/home/log"):
        no_folder_is_shared(made)
