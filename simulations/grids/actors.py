"""The Ray actors that Flower starts for a simulation: their number, and the restart of a dead one."""

import sys
import time

STARTED_SECONDS = 120.0


def restart_dead() -> None:
    """In Flower's simulation process: let Ray restart a dead actor, and repeat the task in which it died once.

    Flower puts a dead actor back into its pool: all later tasks of it would fail. Flower has no setting for these
    options of Ray, and makes its actors after it has imported the ClientApp, which calls this. Flower's call that ends
    an actor is not repeated: no actor survives it, and Ray would report a failure for each. In any other process this
    has no effect, and Ray is not imported.
    """
    if "flwr.simulation.run_simulation" in sys.modules:
        from flwr.simulation.ray_transport.ray_actor import ClientAppActor

        ClientAppActor._default_options.update(max_restarts=-1, max_task_retries=1)  # type: ignore[attr-defined]
        ClientAppActor.__ray_metadata__.method_meta.max_task_retries["terminate"] = 0  # type: ignore[attr-defined]


def count(cpus: float, gpus: float) -> int:
    """How many actors that each need this much fit into Ray's cluster at once, at least one.

    Waits for Ray, which Flower starts in parallel with the ServerApp; RuntimeError after two minutes.
    """
    import ray  # takes seconds, and the other engine does not need it

    deadline = time.monotonic() + STARTED_SECONDS
    while not ray.is_initialized():
        if time.monotonic() > deadline:
            raise RuntimeError(f"Flower did not start Ray within {STARTED_SECONDS:g} seconds")
        time.sleep(0.02)
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return max(1, sum(int(min(r.get("CPU", 0) / cpus, r.get("GPU", 0) / gpus if gpus else 1e9)) for r in resources))
