"""Two hospitals and a server, as docs/deployment.md says it: real processes, TLS, keys, own data,
no shared folder.

Every command of the document is run as it is written there; only ports are replaced, by free ones.
"""

import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from benchmarks.flower.flower_app import free_port
from benchmarks.flower.hospitals import (
    AGAIN,
    HOSPITALS,
    NAMES,
    REFUSED,
    RETURN,
    ROUNDS,
    RUN,
    SET_UP,
    Federation,
    chapters,
    copies,
    federation,
    finished_rounds,
    follow,
    ledger,
    run_folders,
    statuses,
)
from benchmarks.flower.machines import wait_until
from fedlsg.privacy.ledger import Entry, Ledger

EXAMPLES = {"north": 900, "south": 537}
EPSILON_MAX = {"north": 2.25, "south": 2.15}
DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Story:
    """What two runs left: their summaries, the server's copies of the ledgers, and the hospitals'
    own ledgers.

    away: the rounds that were finished when a hospital was killed.
    """

    made: Federation
    summaries: tuple[dict[str, Any], ...]
    copies: tuple[dict[str, bytes], ...]
    ledgers: dict[str, Ledger]
    away: dict[str, int]
    statuses: list[str]

    def entries(self, name: str, run: int) -> list[Entry]:
        """What a hospital charged in the first (0) or the second run."""
        entries = self.ledgers[name].entries
        names = list(dict.fromkeys(entry.run for entry in entries))
        return [entry for entry in entries if entry.run == names[run]]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Chapters 1 to 9; in the first run north is killed and returns under its key, south under
    another.
    """
    with federation(tmp_path_factory.mktemp("federation")) as made:
        for block in chapters(*SET_UP):
            follow(made, block)
        running, *look = chapters(RUN)
        first = made["server"].start(running.text)
        away = {"north": lose(made, "north", 1)}
        (again,) = [b for b in chapters(SET_UP[-1]) if b.machines == ("north",)]
        follow(made, again)
        away["south"] = lose(made, "south", charged_after(made, "north", away["north"]))
        for block in chapters(RETURN):
            follow(made, block)
        assert first.wait(timeout=900) == 0
        for block in look:
            follow(made, block)
        for block in chapters(AGAIN):
            follow(made, block)
        folders = run_folders(made)
        yield Story(
            made=made,
            summaries=tuple(
                json.loads((folder / "summary.json").read_text()) for folder in folders
            ),
            copies=tuple(copies(folder) for folder in folders),
            ledgers={name: ledger(made, name) for name in HOSPITALS},
            away=away,
            statuses=statuses(made),
        )


def lose(made: Federation, name: str, rounds: int) -> int:
    """Kill a hospital once so many rounds are finished; returns how many are."""
    wait_until(
        lambda: finished_rounds(made) >= rounds,
        lambda: f"round {rounds}:\n{made['server'].log[-3000:]}",
    )
    made[name].kill("flower-supernode")
    return finished_rounds(made)


def charged_after(made: Federation, name: str, round: int) -> int:
    """The first round after ``round + 1`` that a hospital charged: it is back then."""

    def back() -> list[int]:
        return [entry.round for entry in ledger(made, name).entries if entry.round > round + 1]

    wait_until(
        lambda: bool(back()), lambda: f"{name} to train again:\n{made['server'].log[-3000:]}"
    )
    return min(back())


@pytest.mark.slow
@pytest.mark.ray
class TestTwoRuns:
    """Chapters 1 to 9, with a hospital killed (-9) in the first run, and then the other."""

    def test_both_runs_end_as_they_should(self, story):
        assert story.statuses == ["finished:completed"] * 2
        first, second = story.summaries
        assert (first["rounds"], first["stopped"]) == (ROUNDS, None)
        assert 0 < second["rounds"] < ROUNDS
        assert "budget" in second["stopped"]
        assert first["private"]
        assert second["private"]

    def test_who_was_killed_came_back(self, story):
        for name in HOSPITALS:
            rounds = [entry.round for entry in story.entries(name, 0)]
            assert set(range(1, story.away[name] + 1)) <= set(rounds)
            assert max(rounds) > story.away[name] + 1
            assert len(rounds) == len(set(rounds)), "nothing was charged twice"

    def test_the_second_run_continues_both_ledgers(self, story):
        for name in HOSPITALS:
            own = story.ledgers[name].path.read_bytes()
            assert own == story.copies[1][name]
            assert own.startswith(story.copies[0][name])
            assert len(story.entries(name, 0)) > 0
            assert len(story.entries(name, 1)) > 0

    def test_each_hospital_stops_at_its_own_epsilon_max(self, story):
        for name in HOSPITALS:
            own = story.ledgers[name]
            assert own.epsilon(DELTA).upper <= EPSILON_MAX[name]
            one_more = replace(own.entries[-1], round=own.entries[-1].round + 1)
            assert own.would_exceed(one_more, EPSILON_MAX[name], DELTA)

    def test_server_and_ledgers_agree_on_epsilon(self, story):
        after_both = [story.ledgers[name].epsilon(DELTA).upper for name in HOSPITALS]
        assert story.summaries[1]["epsilon_max"] == pytest.approx(max(after_both), rel=1e-6)
        after_first = []
        for name in HOSPITALS:
            entries = story.entries(name, 0)
            only = Ledger(story.made[name].folder / "first.jsonl", client=HOSPITALS.index(name))
            for entry in entries if not only.entries else ():
                only.charge(entry)
            after_first.append(only.epsilon(DELTA).upper)
        assert story.summaries[0]["epsilon_max"] == pytest.approx(max(after_first), rel=1e-6)

    def test_no_machine_knows_a_folder_of_another(self, story):
        no_folder_is_shared(story.made)


@pytest.mark.slow
@pytest.mark.ray
class TestTwoRounds:
    """Chapters 1 to 7, a run of two rounds."""

    @pytest.fixture(scope="class")
    def made(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
        with federation(tmp_path_factory.mktemp("federation")) as made:
            for block in chapters(*SET_UP, RUN):
                assert f"rounds = {ROUNDS}\n" in block.text or "run.toml" not in block.text
                follow(
                    made,
                    replace(block, text=block.text.replace(f"rounds = {ROUNDS}\n", "rounds = 2\n")),
                )
            yield made

    def test_the_run_completes_and_everyone_agrees_on_epsilon(self, made):
        assert statuses(made) == ["finished:completed"]
        (folder,) = run_folders(made)
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["rounds"], summary["stopped"], summary["private"]) == (2, None, True)
        spent = {name: ledger(made, name).epsilon(DELTA).upper for name in HOSPITALS}
        assert summary["epsilon_max"] == pytest.approx(max(spent.values()), rel=1e-6)
        assert copies(folder) == {name: ledger(made, name).path.read_bytes() for name in HOSPITALS}
        entries = {
            name: [(e.round, e.num_examples) for e in ledger(made, name).entries]
            for name in HOSPITALS
        }
        assert entries == {name: [(1, EXAMPLES[name]), (2, EXAMPLES[name])] for name in HOSPITALS}

    def test_the_code_is_the_bundle_of_the_server(self, made):
        """What the document says of whom a hospital trusts: its client ran from the app that the
        server sent.
        """
        for name in HOSPITALS:
            (app,) = (made[name].home / ".flwr" / "apps").iterdir()
            compiled = app / "simulations" / "client" / "__pycache__"
            assert list(compiled.glob("client_app.*.pyc"))

    def test_no_machine_knows_a_folder_of_another(self, made):
        no_folder_is_shared(made)

    def test_the_server_proves_itself_by_the_certificate_of_the_authority(self, made):
        address = ("127.0.0.1", made["server"].ports["9092"])
        authority = ssl.create_default_context(cafile=made["north"].home / "federation" / "ca.crt")
        with (
            socket.create_connection(address) as plain,
            authority.wrap_socket(plain, server_hostname="127.0.0.1") as s,
        ):
            assert s.version() == "TLSv1.3"
        with (
            socket.create_connection(address) as plain,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")

    def test_a_key_that_is_not_registered_is_refused(self, made):
        made["south"].run('ssh-keygen -q -t ecdsa -b 384 -N "" -f stranger')
        (block,) = [b for b in chapters(SET_UP[-1]) if b.machines == ("south",)]
        seen = len(made["south"].log)
        text = block.text.replace("9095", str(free_port())).replace("node_key", "stranger")
        made["south"].start(text).wait(timeout=120)
        assert REFUSED in made["south"].log[seen:]


def no_folder_is_shared(made: Federation) -> None:
    """Assert that no file of a machine names the data or the ledger of another one."""
    for machine in made.values():
        others = [f"/{name}/home/federation/".encode() for name in NAMES if name != machine.name]
        for path in machine.folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                content = path.read_bytes()
                assert not any(other in content for other in others), path
