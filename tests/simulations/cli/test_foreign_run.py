"""A run directory that somebody sent: no command and no Python call runs code of it, until its
reader says so.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.main

import fedlsg as package
from fedlsg.simulations.cli.command_line import app
from fedlsg.simulations.storage.atomic_files import save_checkpoint
from tests.simulations.support.own import MINE, fresh, quick, refused, write

Command = Callable[..., tuple[int, str, str]]
OTHER = "\ndef watch(row): ...\n\ndef draw(count, generator):\n    return rows(count, 3)\n"
READS = (
    "report RUN",
    "report RUN RUN --out pages",
    "report UNFINISHED",
    "report GRID --out pages",
    "export RUN --out x",
    "payload RUN --round 1 --client 0 --out x.npz",
    "runs SENT --html x.html",
    "runs --compare RUN UNFINISHED",
)
NEEDS = (
    "resume UNFINISHED",
    "inspect RUN",
    "audit RUN",
    "attack RUN",
    "attack --membership RUN",
    "attack --record RUN",
)
OTHERS = {
    "run": "run --out RUN --engine local",
    "compare": "compare digits --methods lsg --epsilons 8 --out GRID",
    "calibrate": "calibrate --epsilon 1",
    "partition": None,
    "list": "list methods",
    "settings": "settings",
    "docs": "docs",
    "plan": "plan digits --method lsg",
    "completion": "completion bash",
    "tune": None,
}
"""Commands without a run directory, with what they do where one is; None: they take a name of a
user's alone.
"""


@dataclass(frozen=True)
class Sent:
    """A folder that somebody sent: code that writes a marker where it is run, and run directories
    that name it.
    """

    folder: Path
    marker: Path

    @property
    def mine(self) -> Path:
        return self.folder / "mine.py"

    def words(self, command: str) -> list[str]:
        """A command whose words in capitals are folders."""
        folders = {"SENT": self.folder}
        return [
            str(folders.get(word, self.folder / word)) if word.partition("/")[0].isupper() else word
            for word in command.split()
        ]


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Sent:
    """Two rounds of code of the sender's own; also without a summary, and in a grid."""
    folder = tmp_path_factory.mktemp("sent")
    sent = Sent(folder, folder / "ran")
    write(sent.mine, f"import pathlib\npathlib.Path({str(sent.marker)!r}).touch()\n{MINE}{OTHER}")
    names = {name: f"{sent.mine}:{name}" for name in ("workload", "recipe", "watch", "draw")}
    settings = {
        "method": names["recipe"],
        "callbacks": names["watch"],
        "width": 1,
        "record_updates": True,
    }
    with fresh(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "sender"))
        quick(folder / "RUN", workload=names["workload"], rounds=2, **settings)
    # it would tell that the copies are not whole
    manifest = ["manifest.json*", "clients/manifest.json*"]
    shutil.copytree(folder / "RUN", folder / "UNFINISHED")
    for pattern in ("summary.json", *manifest):
        for path in (folder / "UNFINISHED").glob(pattern):
            path.unlink()
    shutil.copytree(folder / "RUN", folder / "GRID/cells/lsg-epsilon8-seed0")
    write(
        folder / "GRID/grid.toml",
        f'workload = "{names["workload"]}"\n[methods.lsg]\nmethod = "{names["recipe"]}"\n',
    )
    cell = {"given": {"method": names["recipe"]}, "status": "done"}
    write(folder / "GRID/cells.json", json.dumps({"lsg-epsilon8-seed0": cell}))
    assert sent.marker.exists()
    return sent


@pytest.fixture
def sent(received: Sent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sent:
    """To a user who never ran anything. Tests that change it copy it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "receiver"))
    received.marker.unlink(missing_ok=True)
    return received


def test_the_table_has_all_commands():
    known = {words.split()[0] for words in (*READS, *NEEDS)} | OTHERS.keys()
    assert known == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", READS)
def test_reading_runs_nothing(command, sent, fedlsg: Command):
    status, _, err = fedlsg(*sent.words(command))
    assert (status, err) == (0, "")
    assert not sent.marker.exists()


@pytest.mark.parametrize("command", NEEDS)
def test_a_command_that_needs_the_code_asks(command, sent, fedlsg: Command):
    status, _, err = fedlsg(*sent.words(command))
    refused = 2 if command == "audit RUN" else 1  # 1 of an audit: falsified
    assert (status, err.count("\n")) == (refused, 1)
    for words in (
        "names code, workload 'mine.py:workload'",
        str(sent.mine),
        "(sha256 ",
        "so nothing of it was run",
    ):
        assert words in err
    assert f"name it: --workload {sent.mine}:workload, or add --trust-code" in err
    assert not sent.marker.exists()


@pytest.mark.parametrize("command", [command for command in OTHERS.values() if command])
def test_other_commands_run_nothing_of_it(command, sent, fedlsg: Command, monkeypatch):
    monkeypatch.chdir(sent.folder / "RUN")
    fedlsg(*sent.words(command))
    assert not sent.marker.exists()


def test_negative_control_where_the_user_is_not_asked_it_runs(sent, fedlsg: Command, monkeypatch):
    monkeypatch.setattr("fedlsg.simulations.planning.trust.is_known", lambda digest, path: True)
    fedlsg(*sent.words("inspect RUN --out x"))
    assert sent.marker.exists()


def test_python_reads_a_run_and_runs_nothing(sent):
    run = package.load_run(sent.folder / "RUN")
    assert len(run.rounds) == len(run.plot().axes[0].lines[0].get_xdata()) == 2
    assert run.epsilon == run.summary["epsilon_max"]
    assert run.bytes
    assert "mine.py:workload" in repr(run) + run._repr_html_()
    with refused("names code, workload 'mine.py:workload'", "in Python: trust_code=True"):
        run.model  # noqa: B018
    assert not sent.marker.exists()


@pytest.mark.slow
def test_named_once_it_is_known(sent, fedlsg: Command, tmp_path):
    shutil.copytree(sent.folder / "UNFINISHED", tmp_path / "copy")
    # of the whole file; then as a requeue does
    for named in (("--workload", f"{sent.mine}:workload"), ()):
        with fresh():
            status, _, err = fedlsg("resume", str(tmp_path / "copy"), *named)
            assert (status, err) == (0, "")
        (tmp_path / "copy" / "summary.json").unlink()


@pytest.mark.parametrize("how", ["named", "trusted", "known"])
def test_other_code_than_the_record_is_refused(how, sent, fedlsg: Command, tmp_path, monkeypatch):
    other = write(tmp_path / "mine.py", sent.mine.read_text() + "# other\n")
    shutil.copytree(sent.folder / "UNFINISHED", tmp_path / "copy")
    text = (tmp_path / "copy/config.toml").read_text().replace(str(sent.mine), str(other))
    write(tmp_path / "copy/config.toml", text)
    monkeypatch.setattr(
        "fedlsg.simulations.planning.trust.is_known", lambda digest, path: how == "known"
    )
    said = {"named": ["--workload", f"{other}:workload"], "trusted": ["--trust-code"], "known": []}[
        how
    ]
    status, _, err = fedlsg("resume", str(tmp_path / "copy"), *said)
    assert status == 1
    assert (
        "the code of the run's own callbacks and method and workload differs from that which this "
        "run began with" in err
    )
    assert "restore the file mine.py, or start a new run" in err
    assert not sent.marker.exists()


class Bomb:
    """What a pickle may do when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.marker),)


def test_no_checkpoint_is_unpickled(sent, fedlsg: Command, tmp_path):
    shutil.copytree(sent.folder / "UNFINISHED", tmp_path / "copy")
    bomb = tmp_path / "bomb"
    named = ("--workload", f"{sent.mine}:workload", "--method", f"{sent.mine}:recipe")
    for name in ("latest", "previous"):
        save_checkpoint(
            tmp_path / f"copy/checkpoint/{name}.pt", tmp_path / "before.pt", {"server": Bomb(bomb)}
        )
    status, _, err = fedlsg("inspect", str(tmp_path / "copy"), *named)
    assert status == 1
    assert "latest.pt is damaged" in err
    assert not bomb.exists()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("report RUN", "report.html"),
        ("report RUN", ".report.html.1"),
        ("audit RUN", "audit.json"),
        ("inspect RUN", "inspection"),
        ("resume RUN", ".lock"),
        ("export RUN", "export"),
    ],
)
def test_no_link_leads_out_of_it(command, name, sent, fedlsg: Command, tmp_path):
    shutil.copytree(sent.folder / "RUN", tmp_path / "RUN")
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "RUN" / name).unlink(missing_ok=True)
    (tmp_path / "RUN" / name).symlink_to(precious)
    named = ("--workload", f"{sent.mine}:workload", "--method", f"{sent.mine}:recipe")
    watched = (*named, "-c", f"callbacks={sent.mine}:watch")
    more = {"resume": watched, "report": (), "export": ()}.get(command.split()[0], named)
    status, _, err = fedlsg(*Sent(tmp_path, tmp_path / "ran").words(command), *more)
    assert status == (2 if command == "audit RUN" else 1)  # 1 of an audit: falsified
    assert f"{tmp_path / 'RUN' / name} is a link to {precious}, outside of the run directory" in err
    assert precious.read_text() == "mine"
