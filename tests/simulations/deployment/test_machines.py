"""The machines of a federation's tests: each keeps to itself, ends its processes, and notices what it shares."""

from pathlib import Path

import pytest

from tests.simulations.deployment.test_two_hospitals import no_folder_is_shared
from tests.simulations.support.machines import CommandError, Machine, machines


@pytest.fixture
def made(tmp_path: Path):
    with machines(tmp_path, "server", "north", "south", ports={"9092": 39094, "9094": 39092}) as made:
        yield made


def test_a_command_that_fails_is_an_error_that_shows_what_it_printed(made):
    with pytest.raises(CommandError, match="status 3"):
        made["north"].run("echo why\nexit 3")


def test_what_was_started_again_until_it_was_accepted_is_ended(tmp_path):
    with machines(tmp_path, "north", ports={}) as made:
        north: Machine = made["north"]
        tried = (
            "n=$(cat tries 2>/dev/null || echo 0); echo $((n + 1)) > tries; [ $n -ge 2 ] || { echo refused; exit 1; }"
        )
        north.start_until(f"{tried}\necho ready\nexec sleep 600", "ready", "refused")
        assert (north.home / "tries").read_text() == "3\n"
        (sleeping,) = north.processes("sleep")
    assert not Path(f"/proc/{sleeping}").exists()


def test_a_folder_of_another_machine_is_noticed(made):
    no_folder_is_shared(made)
    (made["server"].home / "log").write_text(f"the ledger is in {made['north'].home}/federation/ledger")
    with pytest.raises(AssertionError, match="server/home/log"):
        no_folder_is_shared(made)
