"""Ten tries of a hostile second user of a machine, really run under another user number.

    python -m benchmarks.privacy.second_user

Needs root, to become him. Prints a table: what he tries, what came of it, seconds and memory of the
process that he tried to harm (not of those that start Ray). A Ray cluster is not needed: he listens
himself. Where a try froze its victim, it was ended after LIMIT seconds.
"""

import fcntl
import hashlib
import io
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import grpc
import numpy as np

from fedlsg.privacy import Entry, Ledger, RunLedger
from fedlsg.simulations.storage.lock import exclusive, is_held
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads.base.cache import load_or_build

NOBODY = 65534
LIMIT = 20
"""Seconds until a victim counts as frozen; starting Ray may take JOINING."""
JOINING = 100
TOKEN = "0123456789abcdef0123456789abcdef"
JOIN = """
from fedlsg.simulations.engines.cluster import starting
with starting(ahead=0) as cluster:
    cluster.wait()
"""
RUN = ["run", "digits", "--rounds", "1", "--clients", "2", "--noise-multiplier", "1"]


@dataclass(frozen=True)
class Harm:
    """What came of a try."""

    words: str
    seconds: float
    megabytes: float


@contextmanager
def nobody(act: Callable[[], object]) -> Iterator[None]:
    """The second user has done ``act``; he keeps what he opened to the end of the block."""
    (ready, said), (wait, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.close(end)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            with suppress(OSError):
                act()
            os.write(said, b".")
            os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    os.read(ready, 1)
    try:
        yield
    finally:
        os.close(end)
        os.waitpid(child, 0)


def lock_all(folder: Path) -> None:
    """Lock whatever he can open."""
    for path in (folder, *folder.rglob("*")):
        with suppress(OSError):
            fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)


def victim(act: Callable[[], object]) -> Harm:
    """The owner's process does ``act``: what it said, how long it took, its memory at most."""
    answer, said = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
        signal.alarm(LIMIT)
        try:
            words = str(act())
        except BaseException as error:
            words = f"{type(error).__name__}: {error}"
        os.write(said, words.encode()[:2000])
        os._exit(0)
    os.close(said)
    with open(answer) as text:
        words = text.read()
    _, status, usage = os.wait4(child, 0)
    frozen = os.waitstatus_to_exitcode(status) == -signal.SIGALRM
    return Harm("frozen" if frozen else words, time.monotonic() - began, usage.ru_maxrss / 1024)


def watched(act: Callable[[], str]) -> Harm:
    """The same for what is a process of its own."""
    began = time.monotonic()
    return Harm(act(), time.monotonic() - began, 0.0)


class Listener(grpc.GenericRpcHandler):
    """What the second user runs in place of a cluster; it keeps the tokens that it is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        self.sent += [
            str(value) for name, value in details.invocation_metadata if name == "authorization"
        ]

        def refuse(_: bytes, context: grpc.ServicerContext) -> bytes:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "")
            return b""

        return grpc.unary_unary_rpc_method_handler(refuse)


def join(home: Path, address: str) -> Callable[[], str]:
    """A run of the owner that joins a cluster, with his token in his home."""

    def act() -> str:
        env = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
        env |= {"HOME": str(home), "TMPDIR": str(home), "RAY_ADDRESS": address}
        env |= {"RAY_AUTH_MODE": "token"}
        command = [sys.executable, "-P", "-c", JOIN]
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=JOINING)
            return (done.stderr.strip().splitlines() or ["joined"])[-1]
        return "frozen"

    return act


def entry(round: int) -> Entry:
    return Entry(
        client=0,
        round=round,
        attempt=0,
        steps=1,
        sample_rate=0.5,
        noise_multiplier=1.0,
        clip_norm=1.0,
        num_examples=100,
        mechanism="dp",
    )


def bomb(run: Path) -> None:
    """An array that nobody asked for, of a gigabyte, in a megabyte; its digest is
    right.
    """
    file = run / "updates/round-000001/frame.npz"
    with zipfile.ZipFile(file) as before:
        members = {name: before.read(name) for name in before.namelist()}
    stream, header = io.BytesIO(), io.BytesIO()
    shape = (2**30,)
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(name, content)
        with made.open("x.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            for _ in range(shape[0] // 2**20):
                member.write(bytes(2**20))
    file.write_bytes(stream.getvalue())
    digest = hashlib.sha256(stream.getvalue()).hexdigest()
    file.with_name("frame.npz.sha256").write_text(f"{digest}  frame.npz\n")
    for name in ("manifest.json", "clients/manifest.json"):
        (run / name).unlink()


def command(*words: str) -> Callable[[], str]:
    """A command of fedlsg; its last line."""

    def act() -> str:
        with tempfile.TemporaryFile("w+") as said:
            for number in (1, 2):
                os.dup2(said.fileno(), number)
            sys.argv = ["fedlsg", *words]
            with suppress(SystemExit):
                from fedlsg.simulations.cli.start import main

                main()
            sys.stdout.flush()
            sys.stderr.flush()
            said.seek(0)
            return (said.read().strip().splitlines() or [""])[-1]

    return act


def on_locks(folder: Path, run: Path) -> Iterator[tuple[str, Harm]]:
    """Tries at files that he may read, and at folders that he may write."""
    ledger = Ledger(folder / "ledger.jsonl", client=0)
    ledger.charge(entry(1))
    with nobody(lambda: lock_all(run)):
        charge = RunLedger(run / "ledger")
        yield "lock the ledger of a run", victim(lambda: charge.charge([entry(9)]))
        (run / ".lock").write_text("1")

        def take() -> str:
            with exclusive(RunDir(run)):
                return "taken"

        yield "lock the run, before `resume`", victim(take)
        yield "show a run as running", victim(lambda: f"running: {is_held(RunDir(run))}")
    with nobody(lambda: lock_all(folder)):
        yield "lock the ledger of a user's own loop", victim(lambda: ledger.charge(entry(2)))
    cache = folder / "cache"
    cache.mkdir()
    cache.chmod(0o777)

    def hold() -> None:
        fcntl.flock(os.open(cache / ".key.lock", os.O_CREAT | os.O_RDWR, 0o644), fcntl.LOCK_EX)

    def build() -> int:
        arrays = {"a": np.zeros(3)}
        return len(load_or_build(cache, "key", lambda: arrays, progress=print))

    with nobody(hold):
        yield "hold the lock of a shared cache", victim(build)


def on_clusters(home: Path) -> Iterator[tuple[str, Harm]]:
    """Tries at the token of a cluster."""
    listener = Listener()
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(listener,))
    port = server.add_insecure_port("0.0.0.0:0")
    server.start()
    (home / "ray").mkdir()
    (home / "ray").chmod(0o777)
    note = home / "ray/ray_current_cluster"
    address = f"127.0.0.1:{port}"

    def with_tokens(harm: Harm) -> Harm:
        got = any(TOKEN in sent for sent in listener.sent)
        listener.sent.clear()
        words = f"he got the token: {got}; {harm.words}"
        return Harm(words, harm.seconds, harm.megabytes)

    with nobody(lambda: note.write_text(address)):
        yield "write the note of `auto`", with_tokens(watched(join(home, "auto")))
    note.unlink()
    note.write_text(address)
    yield "listen where a cluster ended", with_tokens(watched(join(home, "auto")))
    (home / ".ray/auth_token").chmod(0o644)
    yield "read a token that is open", with_tokens(watched(join(home, address)))
    (home / ".ray/auth_token").chmod(0o600)
    server.stop(None)
    with socket.socket() as silent:
        silent.bind(("0.0.0.0", 0))
        silent.listen()
        silent_address = f"127.0.0.1:{silent.getsockname()[1]}"
        yield "listen, and never answer", watched(join(home, silent_address))


def show(folder: Path, what: str, harm: Harm) -> None:
    said = harm.words.replace(str(folder), "").replace("|", "/")[:230]
    memory = f"{harm.megabytes:.0f}" if harm.megabytes else ""
    print(f"| {what} | {said} | {harm.seconds:.1f} | {memory} |", flush=True)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    folder.chmod(0o755)
    os.umask(0o022)
    try:
        run = folder / "run"
        made = victim(command(*RUN, "--record-updates", "--engine", "local", "--out", str(run)))
        assert run.joinpath("summary.json").exists(), made.words
        (folder / ".ray").mkdir()
        (folder / ".ray/auth_token").write_text(TOKEN)
        (folder / ".ray/auth_token").chmod(0o600)
        print("| he tries to | then | s | MB |\n|---|---|---|---|")
        for what, harm in chain(on_locks(folder, run), on_clusters(folder)):
            show(folder, what, harm)
        bomb(run)
        words = ["payload", str(run), "--round", "1", "--client", "0", "--out"]
        show(folder, "send a bomb", victim(command(*words, str(folder / "x.npz"))))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
