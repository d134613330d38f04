"""Ray for one run: a new one, started while the run is planned, or an existing cluster.

A Ray of our own has its own folder, which also hides a cluster of ``ray start``. It listens on
loopback, asks for a token, and ends with this process, however that ends: Linux kills Ray's
processes with the thread that started them, so that thread lives as long as Ray is needed. A
cluster that --ray-address or RAY_ADDRESS names is joined and left; its machines need the package,
but no file of the run. A process that uses Ray already, such as a notebook, continues to use it.
"""

import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlsg.simulations.engines import signals
from fedlsg.simulations.engines.door import (
    in_use,
    joins_cluster,
    limited_memory,
    locked,
    say_what_is_open,
)
from fedlsg.simulations.engines.joining import joining
from fedlsg.simulations.engines.ray_worker import Worker
from fedlsg.simulations.engines.watchers import RayLostError, scratch

if TYPE_CHECKING:
    from ray.job_config import JobConfig

FOLDER_LENGTH_LIMIT = 33
"""Characters of a folder's name: 103, the least that any system allows for a Unix socket, less 68
that Ray adds and 2 that we add."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray prints advice about it
}
"""Variables for every Ray, unless the user has set them."""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Variable for a Ray of our own: on Linux it keeps Ray's ports on loopback, in spite of its name. A
driver that joins a cluster must be reachable from its other machines."""
AHEAD = 4
"""Workers at most that are started before the plan tells how many the run can use."""
PLAIN = (1, 0)
"""Processors and GPUs of a worker that is started before the run is planned."""
SECONDS_TO_END = 8.0
"""Time that Ray may take to end with an interrupted command."""
LEAVE_SECONDS = 10.0
"""Time to wait until an existing cluster is left."""
STEP_SECONDS = 0.2
"""Time between two checks for a signal while Ray starts."""
START_SECONDS = 300.0
"""Longest wait for Ray, and for a worker of it: for its first pile it loads the data as well."""
PLACE_SECONDS = 2.0
"""Time after which the places of ended workers are free again."""
LOOK_SECONDS = 2.0
"""Time between two checks whether Ray still runs, and whether it has grown."""
KEPT = "every finished round is kept"
LOST_SECONDS = 30.0
"""Time that the control service (GCS) of a cluster may be silent: it may be restarted. Ray ends
this process after 60 s."""


class Cluster:
    """Ray, starting in a thread; ``workers`` waits for it."""

    def __init__(self, folder: Path | None, address: str, *, ahead: int, several: bool) -> None:
        """Begin to start or join Ray.

        folder: of a Ray of our own; None to use an existing Ray.
        address: of the cluster to join.
        ahead: workers that a Ray of our own starts at once.
        several: whether several runs use it one after the other.
        """
        self._folder, self._address, self._ahead, self._several = folder, address, ahead, several
        self._started, self._stop = threading.Event(), threading.Event()
        # the error of the start
        self._error: BaseException | None = None
        # whether this object has called ``ray.init``
        self._ours = False
        # workers without a run
        self._idle: list[Any] = []
        # times, by ``time.monotonic``, of the last check and of the last answer of Ray
        self._looked = self._heard = 0.0
        self._thread = threading.Thread(target=self._keep, name="ray", daemon=True)
        self._thread.start()

    def workers(self, most: int, *, cpus: float, gpus: float) -> list[Any]:
        """As many workers as fit with ``cpus`` and ``gpus`` each, at most ``most``.

        In a cluster that others use, some may have to wait for a place. Raises RuntimeError if Ray
        did not start, ValueError if no worker would fit into the empty cluster.
        """
        self.wait()
        number = min(most, fitting(cpus, gpus))
        if number == 0:
            raise ValueError(
                f"no machine of Ray has client_cpus={cpus:g} processors"
                + (f" and client_gpus={gpus:g} of a GPU" if gpus else "")
                + " for a worker; ask for fewer"
            )
        usable = self._idle[:number] if (cpus, gpus) == PLAIN else []
        for worker in self._idle[len(usable) :]:
            self.kill(worker)
        self._idle = []
        return usable + [self.worker(cpus, gpus) for _ in range(number - len(usable))]

    def wait(self) -> None:
        """Wait until Ray has started. Raises RuntimeError if it did not."""
        deadline = time.monotonic() + START_SECONDS
        while not self._started.wait(STEP_SECONDS):
            if time.monotonic() >= deadline:
                raise RuntimeError(f"Ray did not start in {START_SECONDS:.0f} s")
        if self._error is not None:
            reasons = "; ".join(filter(None, (str(self._error), limited_memory())))
            raise RayLostError(f"Ray did not start: {reasons}") from self._error

    @property
    def is_foreign(self) -> bool:
        """Whether Ray existed before, and may have other machines."""
        return self._folder is None

    @property
    def has_queue(self) -> bool:
        """Whether workers may have to wait for other users: in a cluster that we joined."""
        return self.is_foreign and self._ours

    def has_gpus(self) -> bool:
        """Whether workers can have a share of a GPU (in a Ray of our own, one for torch)."""
        self.wait()
        import ray
        import torch

        usable = self._folder is None or torch.cuda.is_available()
        return bool(usable and ray.cluster_resources().get("GPU", 0) > 0)

    def address(self) -> str:
        """HOST:PORT where other processes join Ray. Raises RuntimeError if it did not start."""
        self.wait()
        import ray

        return str(ray.get_runtime_context().gcs_address)

    def look(self) -> bool:
        """Check Ray every LOOK_SECONDS; returns whether it was checked in this call.

        Raises RayLostError if its control service is gone, or the raylet of this machine, without
        which no worker starts.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        self._heard = self._heard or now
        try:
            self._reach()
        except RayLostError as lost:
            may_be_back = self.is_foreign or not isinstance(lost.__cause__, ConnectionRefusedError)
            if may_be_back and now - self._heard < LOST_SECONDS:
                return False
            raise
        self._heard = now
        import ray

        here = ray.get_runtime_context().get_node_id()
        if any(node["NodeID"] == here and not node["Alive"] for node in ray.nodes()):
            raise RayLostError(f"Ray's process of this machine (raylet) is gone; {KEPT}")
        return True

    def _reach(self) -> None:
        """Raise RayLostError if nobody listens where the control service was."""
        host, _, port = self.address().rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=LOOK_SECONDS).close()
        except OSError as error:
            raise RayLostError(
                f"Ray's control service (GCS) at {host}:{port} is gone ({error}); {KEPT}"
            ) from error

    @contextmanager
    def losses_named(self) -> Iterator[None]:
        """Turn an error of the block into a RayLostError if the control service is gone.

        Ray raises many different errors then. A command whose main thread hangs in Ray's library is
        ended.
        """
        block_ended = threading.Event()
        threading.Thread(target=self._end_if_lost, args=(block_ended,), daemon=True).start()
        try:
            yield
        except Exception:
            if self._started.is_set() and self._error is None:
                self._reach()
            raise
        finally:
            block_ended.set()

    def _end_if_lost(self, block_ended: threading.Event) -> None:
        """End the command if our own Ray is gone and the block does not notice it in time."""
        self._started.wait()
        while self._error is None and not self.is_foreign and not block_ended.wait(LOOK_SECONDS):
            try:
                self._reach()
            except RayLostError as lost:
                refused = isinstance(lost.__cause__, ConnectionRefusedError)
                if refused and not block_ended.wait(LEAVE_SECONDS):
                    signals.end_now(str(lost))

    def give_back(self, workers: list[Any], *, cpus: float, gpus: float) -> None:
        """Keep idle workers for the next of several runs, with torch imported; else end them."""
        if self._several and (cpus, gpus) == PLAIN:
            self._idle += workers
        else:
            for worker in workers:
                self.kill(worker)

    @staticmethod
    def worker(cpus: float, gpus: float) -> Any:
        """Start a new worker."""
        import ray

        # Ray must not repeat a task that draws noise: its first result may have been released
        actor = ray.remote(Worker).options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0
        )
        return actor.remote()

    @staticmethod
    def kill(worker: Any) -> None:
        """End a worker at once."""
        import ray

        ray.kill(worker)

    def end(self) -> None:
        """Leave the cluster, and end Ray if it is our own.

        If our own Ray still starts, this waits for it; but a command that a signal ends does not
        wait, since Ray ends with it.
        """
        if not self._started.is_set():
            signals.end_now()
        self._stop.set()
        self._thread.join(START_SECONDS if self._folder else LEAVE_SECONDS)

    def _keep(self) -> None:
        """Start Ray, and end it after ``end`` is called; all in one thread."""
        try:
            import ray

            self._ours = not ray.is_initialized()
            if self._ours:
                with signals.kept_handler():
                    self._init(ray)
            if self._folder is None:
                say_what_is_open()
            else:
                self._idle = [self.worker(*PLAIN) for _ in range(min(processors(), self._ahead))]
        except BaseException as error:  # ``workers`` raises it, in the thread that waits
            self._error = error
        finally:
            self._started.set()
        self._stop.wait()
        if self._error is None and self._ours:
            with signals.kept_handler():
                ray.shutdown()

    def _init(self, ray: Any) -> None:
        """Start a Ray of our own, or join the cluster at the address."""
        common = {"logging_level": "ERROR", "log_to_driver": False, "job_config": driver_path_job()}
        if self._folder is None:
            ray.init(address=self._address, **common)
            return
        ray.init(
            address="local",
            num_cpus=processors(),
            include_dashboard=False,
            # Ray makes this folder open to everybody; the folder around it stays ours
            _temp_dir=str(self._folder / "r"),
            **common,
        )


_AHEAD: list[Cluster] = []
"""The Ray of an enclosing ``starting_ahead``."""


@contextmanager
def starting(*, ahead: int = AHEAD, several: bool = False) -> Iterator[Cluster]:
    """Start Ray for the block, for one run or ``several``, with ``ahead`` workers at most at first.

    Nothing of it is left afterwards.
    """
    signals.allow(SECONDS_TO_END)
    with signals.sigterm_raises(), ExitStack() as stack:
        variables = ENVIRONMENT if joins_cluster() else {**ENVIRONMENT, **LOOPBACK}
        for name, value in variables.items():
            os.environ.setdefault(name, value)
        folder = None
        address = "local"
        if not in_use():
            if joins_cluster():
                address = stack.enter_context(joining())
            else:
                folder = stack.enter_context(scratch(short_base()))
                stack.enter_context(locked(folder))
        cluster = Cluster(folder, address, ahead=ahead, several=several)
        try:
            yield cluster
        finally:
            with signals.ignore_interrupts():
                cluster.end()


@contextmanager
def starting_ahead(*, several: bool = False) -> Iterator[None]:
    """Start Ray while the block prepares the first run that ``ready`` gives it to."""
    if _AHEAD:
        yield
        return
    with starting(several=several) as cluster:
        _AHEAD.append(cluster)
        try:
            yield
        finally:
            _AHEAD.clear()


@contextmanager
def ready() -> Iterator[Cluster]:
    """The Ray of an enclosing ``starting_ahead``, or a new one for the block."""
    if _AHEAD:
        yield _AHEAD[-1]
        return
    with starting() as cluster:
        yield cluster


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fitting(cpus: float, gpus: float) -> int:
    """The number of workers that fit into the empty cluster, with this much for each."""
    import ray

    number = 0
    for node in ray.nodes():
        if node["Alive"]:
            resources = node["Resources"]
            by_cpus = resources.get("CPU", 0) / cpus
            by_gpus = resources.get("GPU", 0) / gpus if gpus else by_cpus
            number += int(min(by_cpus, by_gpus))
    return number


def gets_place(cpus: float) -> bool:
    """Whether the Ray that this process uses has so many processors free, within PLACE_SECONDS."""
    import ray

    latest = time.monotonic() + PLACE_SECONDS
    while ray.available_resources().get("CPU", 0) < cpus:
        if time.monotonic() >= latest:
            return False
        time.sleep(STEP_SECONDS)
    return True


def short_base() -> str:
    """A folder for temporary folders whose name is short enough for Ray's sockets."""
    asked = os.environ.get("TMPDIR", "")  # Ray uses it as it is, where Python would choose another
    if asked and not (os.path.isdir(asked) and os.access(asked, os.W_OK | os.X_OK)):
        raise RuntimeError(
            f"expected TMPDIR to be a folder that you can write, got {asked}: Ray keeps files "
            "there; make it, name another, unset it, or choose engine=local"
        )
    base = tempfile.gettempdir()
    return base if len(base) + len("/fedlsg-12345678") <= FOLDER_LENGTH_LIMIT else os.sep + "tmp"


def driver_path_job() -> "JobConfig":
    """A ``job_config`` for ``ray.init``: workers search the folders of the driver's ``sys.path``.

    Ray's own config puts the driver's working directory and its script's folder first, and has no
    setting for that: a folder ``strategies/`` there, or another clone of this repository, would
    shadow the installed packages.
    """
    from ray.job_config import JobConfig

    class DriverPathJob(JobConfig):
        def _get_proto_job_config(self) -> object:
            # A worker inserts them one by one at the front, so the last comes first.
            self._py_driver_sys_path = [os.path.abspath(folder) for folder in reversed(sys.path)]
            self._cached_pb = None
            return super()._get_proto_job_config()

    return DriverPathJob()
