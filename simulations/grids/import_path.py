"""The import path of a run's processes: they import the driver's packages, in any working directory.

Two causes would bring other code into a run. Ray puts the driver's working directory first on the import path of its
workers: a folder ``strategies/`` there, or another clone of this repository, would shadow the installed packages. And
a process that Flower starts does not know that its driver was started from a clone (``python -m simulations``).

``check_same_code`` checks afterwards that server and clients run the same code.
"""

import os
import sys
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.job_config import JobConfig

PACKAGES = ("fedlsg", "simulations", "strategies")


def driver_path_job() -> "JobConfig":
    """A ``job_config`` for ``ray.init`` with which workers search the driver's ``sys.path`` first, in its order.

    Ray's own puts the driver's working directory and its script's folder first, and has no setting for that.
    """
    from ray.job_config import JobConfig

    class DriverPathJob(JobConfig):
        def _get_proto_job_config(self) -> object:
            # A worker inserts them one by one at the front, so the last comes first.
            self._py_driver_sys_path = [os.path.abspath(folder) for folder in reversed(sys.path)]
            self._cached_pb = None
            return super()._get_proto_job_config()

    return DriverPathJob()


def workers_import_as_driver() -> None:
    """In Flower's simulation process, before it starts Ray: let workers search its path. Elsewhere no effect.

    Flower starts Ray after it has imported the ClientApp, which calls this, and passes no ``job_config`` of its own.
    """
    if "flwr.simulation.run_simulation" in sys.modules:
        import ray

        if not isinstance(ray.init, partial):
            ray.init = partial(ray.init, job_config=driver_path_job())


def with_packages(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """``env`` for child processes that import the same three packages as this process.

    ``folder`` is filled with a link to each and nothing else, so imports of other modules do not change.
    """
    folder.mkdir()
    for name in PACKAGES:
        spec = find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations
        (folder / name).symlink_to(Path(next(iter(spec.submodule_search_locations))).resolve())
    path = [str(folder), *filter(None, [env.get("PYTHONPATH")])]
    return {**env, "PYTHONPATH": os.pathsep.join(path)}
