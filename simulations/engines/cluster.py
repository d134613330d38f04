"""Ray for one run: started while the run is planned, ended with it; or a cluster that is there
already.

A Ray of its own has its folder, which also hides a cluster of ``ray start``, listens on loopback,
asks for a token, and ends with this process, however that ends: Linux kills Ray's processes with
the thread that started them, so that thread lives as long as Ray is needed. A cluster that
--ray-address or RAY_ADDRESS names is joined and left; its machines need the package, no file of the
run. A process that uses Ray already, such as a notebook, goes on using it.
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

# characters; we add 2, Ray adds 68 for a Unix socket, and 103 is the least any system allows
FOLDER_LENGTH_LIMIT = 33
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray prints advice about it
}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""For a Ray of our own, for which a token is asked as well: on Linux this switch, named for other
systems, keeps its ports on loopback. A driver that joins a cluster must be reachable from its other
machines."""
AHEAD = 4
"""Workers that are started before the run is planned, at most: how many it can use is not known
then.
"""
PLAIN = (1, 0)
"""Processors and GPUs of a worker that is started before the run is planned."""
SECONDS_TO_END = 8.0
"""How long Ray may take to end with an interrupted command."""
LEAVE_SECONDS = 10.0
"""Seconds to wait until a cluster that is there already is left."""
STEP_SECONDS = 0.2
"""Between two looks for a signal while Ray starts."""
START_SECONDS = 300.0
"""Longest wait for Ray, and for a worker of it: for its first pile it loads the data as well."""
PLACE_SECONDS = 2.0
"""How long the places of workers that have ended may stay taken."""
LOOK_SECONDS = 2.0
"""Between two looks whether Ray is still there, and whether it has grown."""
KEPT = "every finished round is kept"
LOST_SECONDS = 30.0
"""How long the control service (GCS) of a cluster may be silent: it may be restarted. Ray ends us
after 60.
"""


class Cluster:
    """Ray, starting in a thread; ``workers`` waits for it."""

    def __init__(self, folder: Path | None, address: str, *, ahead: int, several: bool) -> None:
        self._folder, self._address, self._ahead, self._several = folder, address, ahead, several
        self._started, self._stop = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._ours = False
        self._idle: list[Any] = []
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
        """Return when Ray has started. Raises RuntimeError if it did not."""
        deadline = time.monotonic() + START_SECONDS
        while not self._started.wait(STEP_SECONDS):
            if time.monotonic() >= deadline:
                raise RuntimeError(f"Ray did not start in {START_SECONDS:.0f} s")
        if self._error is not None:
            why = "; ".join(filter(None, (str(self._error), limited_memory())))
            raise RayLostError(f"Ray did not start: {why}") from self._error

    @property
    def is_foreign(self) -> bool:
        """Whether there may be other machines."""
        return self._folder is None

    @property
    def has_queue(self) -> bool:
        """Whether workers may wait for places as long as others use them: in a cluster that we
        joined, not in a Ray of this process.
        """
        return self.is_foreign and self._ours

    def has_gpus(self) -> bool:
        """Whether workers can have a share of a GPU. A Ray of our own counts those that torch can
        use.
        """
        self.wait()
        import ray
        import torch

        usable = self._folder is None or torch.cuda.is_available()
        return bool(usable and ray.cluster_resources().get("GPU", 0) > 0)

    def address(self) -> str:
        """HOST:PORT where other processes of this machine join Ray. Raises RuntimeError if it did
        not start.
        """
        self.wait()
        import ray

        return str(ray.get_runtime_context().gcs_address)

    def look(self) -> bool:
        """Whether it is time, every LOOK_SECONDS, to look at Ray.

        Raises RayLostError if its control service is gone, or the raylet of this machine, without
        which no worker starts.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked, self._heard = now, self._heard or now
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
        """An error inside is a RayLostError if the control service is gone: Ray has many for it.

        A command whose main thread waits for it in Ray's library is ended.
        """
        over = threading.Event()
        threading.Thread(target=self._end_if_lost, args=(over,), daemon=True).start()
        try:
            yield
        except Exception:
            if self._started.is_set() and self._error is None:
                self._reach()
            raise
        finally:
            over.set()

    def _end_if_lost(self, over: threading.Event) -> None:
        self._started.wait()
        while self._error is None and not self.is_foreign and not over.wait(LOOK_SECONDS):
            try:
                self._reach()
            except RayLostError as lost:
                refused = isinstance(lost.__cause__, ConnectionRefusedError)
                if refused and not over.wait(LEAVE_SECONDS):
                    signals.end_now(str(lost))

    def give_back(self, workers: list[Any], *, cpus: float, gpus: float) -> None:
        """Keep idle workers for another run, with torch imported; end them if there is none."""
        if self._several and (cpus, gpus) == PLAIN:
            self._idle += workers
        else:
            for worker in workers:
                self.kill(worker)

    @staticmethod
    def worker(cpus: float, gpus: float) -> Any:
        """A new worker; one that dies is not started again by Ray, because its task must not be
        repeated unseen.
        """
        import ray

        # A task that draws noise is never repeated: what came of the first try may have been
        # released.
        actor = ray.remote(Worker).options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0
        )
        return actor.remote()

    @staticmethod
    def kill(worker: Any) -> None:
        """End a worker now, whatever it does."""
        import ray

        ray.kill(worker)

    def end(self) -> None:
        """Leave the cluster, and end Ray if it is our own. A start of our own Ray that is under way
        is waited for, except by a command that a signal ends: Ray ends with it.
        """
        if not self._started.is_set():
            signals.end_now()
        self._stop.set()
        self._thread.join(START_SECONDS if self._folder else LEAVE_SECONDS)

    def _keep(self) -> None:
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
        common = {"logging_level": "ERROR", "log_to_driver": False, "job_config": driver_path_job()}
        if self._folder is None:
            ray.init(address=self._address, **common)
            return
        ray.init(
            address="local",
            num_cpus=processors(),
            include_dashboard=False,
            # Ray opens it to everybody; the folder around it stays ours
            _temp_dir=str(self._folder / "r"),
            **common,
        )


_AHEAD: list[Cluster] = []


@contextmanager
def starting(*, ahead: int = AHEAD, several: bool = False) -> Iterator[Cluster]:
    """Ray for one run or several, about to start, with so many workers at most.

    On exit and on every exception nothing of it is left.
    """
    signals.allow(SECONDS_TO_END)
    with signals.sigterm_raises(), ExitStack() as stack:
        switches = ENVIRONMENT if joins_cluster() else {**ENVIRONMENT, **LOOPBACK}
        os.environ.update({name: os.environ.get(name, value) for name, value in switches.items()})
        folder = None if joins_cluster() or in_use() else stack.enter_context(scratch(short_base()))
        joins = folder is None and not in_use()
        address = stack.enter_context(joining()) if joins else "local"
        if folder is not None:
            stack.enter_context(locked(folder))
        cluster = Cluster(folder, address, ahead=ahead, several=several)
        try:
            yield cluster
        finally:
            with signals.ignore_interrupts():
                cluster.end()


@contextmanager
def starting_ahead(*, several: bool = False) -> Iterator[None]:
    """The Ray of the run inside, or of several, starts while the body prepares the first."""
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
    """The Ray of ``starting_ahead``, which ends it, else a new one."""
    if _AHEAD:
        yield _AHEAD[-1]
        return
    with starting() as cluster:
        yield cluster


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fitting(cpus: float, gpus: float) -> int:
    """How many workers that each need this much fit into the cluster at once."""
    import ray

    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(
        int(min(r.get("CPU", 0) / cpus, r.get("GPU", 0) / gpus if gpus else 1e9)) for r in resources
    )


def gets_place(cpus: float) -> bool:
    """Whether the Ray that this process uses has so many processors free, or has them soon:
    workers that end leave their places some time later.
    """
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
    """A ``job_config`` for ``ray.init`` with which workers search the driver's ``sys.path`` first,
    in its order.

    Ray's own puts the driver's working directory and its script's folder first, and has no setting
    for that: a folder ``strategies/`` there, or another clone of this repository, would shadow the
    installed packages.
    """
    from ray.job_config import JobConfig

    class DriverPathJob(JobConfig):
        def _get_proto_job_config(self) -> object:
            # A worker inserts them one by one at the front, so the last comes first.
            self._py_driver_sys_path = [os.path.abspath(folder) for folder in reversed(sys.path)]
            self._cached_pb = None
            return super()._get_proto_job_config()

    return DriverPathJob()
