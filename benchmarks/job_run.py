"""One process of ``benchmarks.engines``: the job on one engine, with a gate before every round but the first."""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tomli_w
import torch

from benchmarks import bare, jobs, pfl_job
from benchmarks.gate import Gate
from simulations.engines import flower, local
from simulations.engines.runtime.superlink import run_app
from simulations.plan.plan import Plan, make_plan
from simulations.rundir.rundir import RunDir, create
from simulations.settings.settings import from_mapping

ENGINES = ("bare", "local", "flower", "flower-single", "fedavg", "pfl")


def run(engine: str, model: str, method: str, rounds: int) -> None:
    """All rounds of the job."""
    torch.set_num_threads(1)
    if engine == "fedavg":
        plain_flower(model, rounds)
    elif engine == "pfl":
        pfl_job.run(model, rounds)
    else:
        grouped = engine != "flower-single"
        name = "local" if engine == "bare" else engine.partition("-")[0]
        given = jobs.settings(model, method, rounds=rounds, engine=name, grouped=grouped)
        plan = make_plan(from_mapping(given))
        if engine == "bare":
            bare_loop((bare.plain if method == "sgd" else bare.private)(plan), rounds)
        else:
            in_directory(plan, partial(on_local if engine == "local" else on_flower))


def in_directory(plan: Plan, engine: Callable[[Plan, RunDir], object]) -> None:
    folder = tempfile.mkdtemp(prefix="rounds-")
    try:
        directory = create(folder, plan.settings)
        directory.write_config(plan.settings)
        engine(plan, directory)
    finally:
        shutil.rmtree(folder)


def on_local(plan: Plan, directory: RunDir) -> None:
    gate = Gate.from_environment()
    local.run(plan, directory, on_round=lambda row: gate.wait(row.round + 1))


def on_flower(plan: Plan, directory: RunDir) -> None:
    apps = {"server_app": "benchmarks.job_apps:server", "client_app": "benchmarks.job_apps:client"}
    flower.run(plan, directory, on_round=lambda row: None, **apps)


def bare_loop(one: bare.Round, rounds: int) -> None:
    gate = Gate.from_environment()
    for number in range(1, rounds + 1):
        one(number)
        gate.wait(number + 1)


def plain_flower(model: str, rounds: int) -> None:
    """Flower's own FedAvg, on as many actors as the machine has cores."""
    app = {
        "publisher": "fedlsg",
        "components": {"serverapp": "benchmarks.fedavg_apps:server", "clientapp": "benchmarks.fedavg_apps:client"},
        "config": {"model": model, "rounds": rounds},
    }
    project = {"name": "fedavg", "version": "1.0.0", "license": "Apache-2.0", "dependencies": []}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "fedavg").mkdir()
        (Path(folder) / "fedavg" / "pyproject.toml").write_text(
            tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})
        )
        run_app(Path(folder) / "fedavg", num_supernodes=jobs.CLIENTS, log_file=Path(folder) / "log", poll=lambda: None)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("engine", choices=ENGINES)
    options.add_argument("model", choices=list(jobs.MODELS))
    options.add_argument("method")
    options.add_argument("rounds", type=int)
    run(**vars(options.parse_args()))
