"""Who can read what a run leaves: the owner alone where it is secret, as the umask says where it is
not.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message

import fedlsg.simulations.client.client_app
from fedlsg import owner_only
from fedlsg.simulations.compare.grid.cell_worker import Job, Shared, run_cell
from fedlsg.simulations.storage import atomic_files
from tests.simulations.support.runs import Run, resume_local, run_local, stopped_after

SECRET = ("updates-truth", "clients", "run.log")
CONFESSION = "the patient in row 1234"


@pytest.fixture(scope="module", autouse=True)
def open_umask() -> Iterator[None]:
    """Whatever is made without a mode of its own can be read and written by everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Permissions of everything in a folder."""
    return {
        str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode))[2:]
        for path in sorted(folder.rglob("*"))
    }


def wrong(found: dict[str, str], folder: Path) -> dict[str, str]:
    """Secrets that somebody else could read."""
    secrets = {name: mode for name, mode in found.items() if name.split("/")[0] in SECRET}
    return {
        name: mode
        for name, mode in secrets.items()
        if mode != ("700" if (folder / name).is_dir() else "600")
    }


def failing(message: Message, context: Context) -> Message:
    """Client 0 quotes its data in an exception."""
    with pytest.MonkeyPatch.context() as patch:
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == 0:
            patch.setattr(fedlsg.simulations.client.client_app, "answer", confess)
        return fedlsg.simulations.client.client_app.app(message, context)


def confess(*_: Any, **__: Any) -> bytes:
    raise ValueError(CONFESSION)


SETTINGS = {
    "method": "topk",
    "noise_multiplier": None,
    "reproducible": False,
    "record_updates": True,
    "clients": 3,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with error feedback, recorded batches and a client that fails."""
    return run_local(tmp_path_factory.mktemp("modes") / "run", client=failing, **SETTINGS)


def test_secrets_can_be_read_by_their_owner_alone(run):
    found = modes(run.path)
    assert wrong(found, run.path) == {}
    listed = {name.split("/")[0] for name in found}
    assert set(SECRET) <= listed
    assert {
        "clients/client-000001",
        "updates-truth/round-000001/client-000001.npy.sha256",
    } <= found.keys()
    assert found["rounds.csv"] == found["updates/round-000001/client-000001.bin"] == "600", (
        "no epsilon covers them"
    )


def test_what_a_client_confesses_is_in_its_log_alone(run):
    holding = [
        path.name
        for path in run.path.rglob("*")
        if path.is_file() and CONFESSION.encode() in path.read_bytes()
    ]
    assert holding == ["run.log"]
    assert "0" in run.rows[0].rejected.split()


@pytest.mark.parametrize("module", ["atomic_files", "last_payload"])
def test_a_secret_that_is_written_like_the_rest_is_found(module, tmp_path, monkeypatch):
    """Negative control."""
    write = atomic_files.write_atomically

    def plainly(path: Path, *content: bytes, private: bool = False, **how: Any) -> None:
        write(path, *content, **how)

    monkeypatch.setattr(f"fedlsg.simulations.storage.{module}.write_atomically", plainly)
    # closed as a whole: no epsilon covers the run
    monkeypatch.setattr(owner_only, "is_closed", lambda folder: False)
    run = run_local(tmp_path / "run", rounds=1, **SETTINGS)
    assert wrong(modes(run.path), run.path)


def test_nothing_secret_is_readable_for_a_moment(tmp_path, monkeypatch):
    """Files are opened with their mode; none is made first and closed to others afterwards."""
    changed: list[str] = []
    monkeypatch.setattr(Path, "chmod", lambda path, mode: changed.append(str(path)))
    monkeypatch.setattr(os, "chmod", lambda path, mode, **_: changed.append(str(path)))
    monkeypatch.setattr(os, "fchmod", lambda file, mode: changed.append(str(file)))
    run = run_local(tmp_path / "run", client=failing, rounds=1, **SETTINGS)
    assert wrong(modes(run.path), run.path) == {}
    assert [name for name in changed if not name.startswith(str(run.path / "ledger.jsonl"))] == []


def test_what_an_older_version_left_readable_is_closed_by_a_resumed_run(tmp_path):
    run = stopped_after(1, tmp_path / "run", **SETTINGS)
    for name in ("updates-truth", "clients/client-000001", "run.log"):
        (run.path / name).chmod(0o777 if (run.path / name).is_dir() else 0o644)
    resume_local(run.path)
    found = modes(run.path)
    assert (found["updates-truth"], found["clients/client-000001"], found["run.log"]) == (
        "700",
        "700",
        "600",
    )


def test_the_log_of_a_cell_is_its_owners_alone(tmp_path):
    """A comparison's worker writes the tracebacks of its own failures there."""
    job = Job(
        path=str(tmp_path / "cell"),
        log=str(tmp_path / "logs" / "cell.log"),
        given={"workload": "no such workload", "engine": "local"},
    )
    ended = run_cell(job, ExitStack(), Shared())
    assert ended.status == "failed"
    assert modes(tmp_path)["logs/cell.log"] == "600"
