"""One process of ``benchmarks.rounds.engines``: the job on one engine, with a gate before every
round but the first.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.flower.flower_app import simulate, write_project
from benchmarks.rounds import bare, jobs, pfl_job
from benchmarks.rounds.gate import Gate
from fedlsg.simulations.engines import local, ray, shared_passes
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.lock import create
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir

ENGINES = ("bare", "local", "alone", "ray", "fedavg", "pfl", "opacus", "fedavg-dp", "pfl-dp")


def run(engine: str, model: str, method: str, rounds: int) -> None:
    """All rounds of the job."""
    torch.set_num_threads(1)
    if engine.startswith("fedavg"):
        plain_flower(model, rounds, "client" if engine == "fedavg" else "private_client")
    elif engine.startswith("pfl"):
        pfl_job.run(model, rounds, private=engine == "pfl-dp")
    else:
        given = jobs.settings(
            model, method, rounds=rounds, engine="ray" if engine == "ray" else "local"
        )
        plan = make_plan(from_mapping(given))
        if engine == "opacus":
            bare_loop(bare.opacus(plan), rounds)
        elif engine == "bare":
            bare_loop((bare.plain if method == "sgd" else bare.private)(plan), rounds)
        else:
            if engine == "alone":
                shared_passes.passes = lambda pile, *_: [[task] for task in pile]
            in_directory(plan, on_ray if engine == "ray" else local.run)


def in_directory(plan: Plan, engine: Callable[..., object]) -> None:
    gate = Gate.from_environment()
    folder = tempfile.mkdtemp(prefix="rounds-")
    try:
        directory = create(folder, plan.settings)
        directory.write_config(plan.settings)
        engine(plan, directory, on_round=lambda row: gate.wait(row.round + 1))
    finally:
        shutil.rmtree(folder)


def on_ray(plan: Plan, directory: RunDir, *, on_round: Callable[[Row], None]) -> object:
    return ray.run(plan, directory, on_round=on_round, client="benchmarks.rounds.job_apps:client")


def bare_loop(one: bare.Round, rounds: int) -> None:
    gate = Gate.from_environment()
    for number in range(1, rounds + 1):
        one(number)
        gate.wait(number + 1)


def plain_flower(model: str, rounds: int, client: str) -> None:
    """Flower's own FedAvg, on as many actors as the machine has cores."""
    config: dict[str, str | int | float | bool] = {"model": model, "rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        apps = "benchmarks.rounds.fedavg_apps:server", f"benchmarks.rounds.fedavg_apps:{client}"
        simulate(
            write_project(Path(folder) / "fedavg", config, *apps), Path(folder), nodes=jobs.CLIENTS
        )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("engine", choices=ENGINES)
    options.add_argument("model", choices=list(jobs.MODELS))
    options.add_argument("method")
    options.add_argument("rounds", type=int)
    run(**vars(options.parse_args()))
