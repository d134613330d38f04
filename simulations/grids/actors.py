"""The Ray actors that Flower starts for a simulation: how many run at once, and what becomes of one that dies."""

import sys
import time

STARTED_SECONDS = 120.0


def restart_dead() -> None:
    """In Flower's simulation process: Ray shall start a dead actor again, and give it what it died with once more.

    Flower puts a dead actor back among those that wait for work: all that it is given then fails, for the rest of the
    run. Flower has no setting for these options of Ray's, and makes its actors after it has imported the ClientApp,
    which calls this. Its call to end an actor, which no actor survives, is not to be given again: Ray would say of each
    that it failed. In any other process nothing is done, Ray is not imported.
    """
    if "flwr.simulation.run_simulation" in sys.modules:
        from flwr.simulation.ray_transport.ray_actor import ClientAppActor

        ClientAppActor._default_options.update(max_restarts=-1, max_task_retries=1)  # type: ignore[attr-defined]
        ClientAppActor.__ray_metadata__.method_meta.max_task_retries["terminate"] = 0  # type: ignore[attr-defined]


def count(cpus: float, gpus: float) -> int:
    """How many actors that each need this much fit into Ray's cluster at once, at least one.

    Waits for Ray, which Flower starts beside the ServerApp; RuntimeError after two minutes.
    """
    import ray  # seconds, and the other engine does without

    deadline = time.monotonic() + STARTED_SECONDS
    while not ray.is_initialized():
        if time.monotonic() > deadline:
            raise RuntimeError(f"Flower did not start Ray within {STARTED_SECONDS:g} seconds")
        time.sleep(0.02)
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return max(1, sum(int(min(r.get("CPU", 0) / cpus, r.get("GPU", 0) / gpus if gpus else 1e9)) for r in resources))
