"""The cluster that a run joins: no other user gets its token, and what is missing is said soon."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from fedlsg.simulations.engines import door, joining
from fedlsg.simulations.engines.door import MODE, PATH, TOKEN
from tests.other_user import needs_root, nobody, open_folder
from tests.places import REPOSITORY

SECRET = "0123456789abcdef0123456789abcdef"


class Gcs(grpc.GenericRpcHandler):
    """What listens in place of a control service: it asks for ``token``, and keeps what it is
    sent.
    """

    def __init__(self, token: str | None) -> None:
        self.token, self.sent, self.address = token, list[str](), ""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        found = dict(details.invocation_metadata).get("authorization", "")
        self.sent.append(found)

        def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
            if self.token is not None and found != f"Bearer {self.token}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def listen(monkeypatch) -> Iterator[object]:
    """Starts what listens; addresses of this machine are those of loopback."""
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    servers = []

    def start(token: str | None) -> Gcs:
        gcs = Gcs(token)
        server = grpc.server(futures.ThreadPoolExecutor(1), handlers=(gcs,))
        gcs.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        servers.append(server)
        return gcs

    yield start
    for server in servers:
        server.stop(None)


@pytest.fixture(autouse=True)
def home(monkeypatch) -> Iterator[Path]:
    """A home with the token of a cluster, and no setting of Ray; the folder of Ray's note is in it,
    open to everybody as Ray makes it.
    """
    with open_folder() as folder:
        (folder / ".ray").mkdir()
        write_token(folder, SECRET)
        (folder / "ray").mkdir()
        (folder / "ray").chmod(0o777)
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("RAY_TMPDIR", str(folder))
        for name in (MODE, PATH, TOKEN, "RAY_USE_TLS"):
            monkeypatch.delenv(name, raising=False)
        # else the Ray of other tests in this process loses its token, and ends the process
        monkeypatch.setattr(door, "_read_again", lambda: None)
        yield folder


def write_token(home: Path, token: str, mode: int = 0o600) -> None:
    (home / ".ray/auth_token").write_text(token)
    (home / ".ray/auth_token").chmod(mode)


def write_note(home: Path, address: str) -> Path:
    note = home / "ray/ray_current_cluster"
    note.write_text(address)
    return note


@contextmanager
def raylet(address: str) -> Iterator[None]:
    """A process that Ray would have started."""
    command = [
        sys.executable,
        "-S",
        "-c",
        "import sys; print(flush=True); sys.stdin.read()",
        f"--gcs-address={address}",
    ]
    with subprocess.Popen(command, stdin=-1, stdout=-1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.stdin.close()


def join(monkeypatch, asked: str) -> tuple[str, str | None]:
    """The address that is joined, and what Ray is told to send there."""
    monkeypatch.setenv("RAY_ADDRESS", asked)
    with joining.joining() as address:
        mode = os.environ.get(MODE)
    return address, mode


def refused(monkeypatch, asked: str, *words: str) -> None:
    with pytest.raises(RuntimeError) as error:
        join(monkeypatch, asked)
    assert [word for word in words if word not in str(error.value)] == []


def test_the_token_of_the_home_is_used_and_said(listen, monkeypatch, capsys):
    gcs = listen(SECRET)
    assert join(monkeypatch, gcs.address) == (gcs.address, "token")
    assert gcs.sent == ["", f"Bearer {SECRET}"]
    said = capsys.readouterr().err
    assert said == f"fedlsg: joining {gcs.address} with the token of ~/.ray/auth_token\n"
    assert MODE not in os.environ


def test_the_places_of_a_token_come_in_the_order_of_ray(listen, monkeypatch, home):
    write_token(home, "another")
    (home / "given").write_text(f"{SECRET}\n")
    monkeypatch.setenv(PATH, str(home / "given"))
    assert join(monkeypatch, listen(SECRET).address)[1] == "token"
    monkeypatch.setenv(TOKEN, "third")
    assert join(monkeypatch, listen("third").address)[1] == "token"


def test_a_cluster_that_asks_for_nothing_is_sent_nothing(listen, monkeypatch):
    gcs = listen(None)
    assert join(monkeypatch, gcs.address) == (gcs.address, "disabled")
    monkeypatch.setenv(MODE, "token")  # its workers would have none
    refused(monkeypatch, gcs.address, "RAY_AUTH_MODE=token is set", "asks nobody for a token")
    assert gcs.sent == ["", ""]


@pytest.mark.parametrize("place", ["missing", "wrong", "open to others"])
def test_a_token_that_cannot_be_used_is_said_at_once(place, listen, monkeypatch, home):
    gcs, began = listen(SECRET), time.monotonic()
    if place == "missing":
        (home / ".ray/auth_token").unlink()
        refused(monkeypatch, gcs.address, "asks for a token: copy its ~/.ray/auth_token here", PATH)
    elif place == "wrong":
        write_token(home, "another")
        refused(monkeypatch, gcs.address, "refuses the token of ~/.ray/auth_token")
    else:
        write_token(home, SECRET, 0o644)
        refused(monkeypatch, gcs.address, "other users can read ~/.ray/auth_token", "umask 077")
        assert gcs.sent == [""]
    assert time.monotonic() - began < 3


def test_what_never_answers_is_given_up(monkeypatch, listen):
    monkeypatch.setattr(joining, "PATIENCE", 0.5)
    began = time.monotonic()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        refused(monkeypatch, address, f"what listens on {address} does not answer as a Ray cluster")
    assert time.monotonic() - began < 3


def test_auto_is_the_cluster_of_this_users_own_ray(listen, monkeypatch, home):
    gcs = listen(SECRET)
    write_note(home, gcs.address)
    with raylet(gcs.address):
        assert join(monkeypatch, "auto") == (gcs.address, "token")


def test_a_note_of_a_cluster_that_ended_is_not_followed(listen, monkeypatch, home):
    gcs = listen(SECRET)
    write_note(home, gcs.address)
    refused(monkeypatch, "auto", "no Ray process of yours", "nothing was sent there")
    assert gcs.sent == []


@pytest.mark.parametrize("kind", ["writable", "link", "folder", "missing"])
def test_a_note_that_others_could_have_written_is_not_followed(kind, listen, monkeypatch, home):
    gcs = listen(SECRET)
    note = write_note(home, gcs.address)
    if kind == "writable":
        note.chmod(0o666)
    else:
        note.rename(home / "else")
    if kind == "link":
        note.symlink_to(home / "else")
    if kind == "folder":
        note.mkdir()
    with raylet(gcs.address):
        refused(monkeypatch, "auto", "could have: nothing" if kind == "writable" else "no cluster")
    assert gcs.sent == []


@needs_root
@pytest.mark.parametrize("forged", ["note", "process"])
def test_another_user_gets_no_token(forged, listen, monkeypatch, home):
    gcs = listen(SECRET)

    def forge() -> None:
        if forged == "note":
            write_note(home, gcs.address)
        else:
            command = ["/bin/sh", "-c", "sleep 5; exit", "sh", f"--gcs-address={gcs.address}"]
            subprocess.Popen(command)
            time.sleep(0.1)

    if forged == "process":
        write_note(home, gcs.address)
        with nobody(forge):
            refused(monkeypatch, "auto", "no Ray process of yours")
    else:
        with nobody(forge), raylet(gcs.address):
            refused(monkeypatch, "auto", "another user (number 65534", "nothing was sent there")
    assert gcs.sent == []


RAY = Path(sys.executable).with_name("ray")
RUN = ("run", "digits", "--rounds", "1", "--clients", "2", "--noise-multiplier", "1")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("asks", ["token", "nothing"])
def test_a_cluster_of_ray_start_is_joined(asks, home, tmp_path):
    """With a token as newer versions of Ray start it, and without, as older ones do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    plain = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    env = plain | {"TMPDIR": str(home), "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    options = [f"--port={port}", "--num-cpus=1", "--object-store-memory=100000000"]
    options += ["--include-dashboard=false", "--min-worker-port=0", "--max-worker-port=0"]
    mode = {MODE: "token" if asks == "token" else "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        [RAY, "start", "--head", "--block", *options],
        env=env | mode,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as head:
        try:
            deadline = time.monotonic() + 120
            while not (home / "ray/ray_current_cluster").exists():
                assert time.monotonic() < deadline
                time.sleep(0.2)
            command = [sys.executable, "-m", "fedlsg", *RUN, "--ray-address", "auto", "--out"]
            done = [
                subprocess.run(
                    [*command, str(tmp_path / "run")],
                    env=env,
                    capture_output=True,
                    text=True,
                    timeout=240,
                )
            ]
            write_token(home, "another")
            began = time.monotonic()
            done.append(
                subprocess.run(
                    [*command, str(tmp_path / "next")],
                    env=env,
                    capture_output=True,
                    text=True,
                    timeout=240,
                )
            )
            took = time.monotonic() - began
        finally:
            head.terminate()
    assert done[0].returncode == 0, done[0].stderr
    if asks == "token":
        assert "with the token of ~/.ray/auth_token" in done[0].stderr
        assert done[1].returncode == 1
        assert "refuses the token of ~/.ray/auth_token" in done[1].stderr
        assert took < 40, "most of it is the start of Python and of the plan"
    else:
        assert "asks nobody for a token" in done[0].stderr
        assert done[1].returncode == 0
