"""CPU seconds of one simulated round relative to the bare loop, for the job of ``benchmarks.jobs``.

    python -m benchmarks.rounds --json FILE [--models lenet wide] [--methods dpsgd lsg sgd] [--pairs 30]

Every round of the ``local`` engine is followed by one round of the bare loop on the same clients, so that both see the
same machine. The reference of a private method does the same arithmetic; that of ``sgd`` is plain federated SGD.
"""

import shutil
import statistics
import tempfile
import time
from typing import Any

import torch

from benchmarks import bare, jobs
from benchmarks.pairs import estimate, parser, write
from simulations.engines import local
from simulations.plan.plan import make_plan
from simulations.rundir.lock import create
from simulations.rundir.tables import Row
from simulations.settings.settings import from_mapping


def measure(model: str, method: str, *, pairs: int, warmup: int) -> dict[str, Any]:
    """Interleaved rounds of the engine and of the bare loop: medians, and the ratio with its interval."""
    rounds = warmup + pairs + 1
    plan = make_plan(from_mapping(jobs.settings(model, method, rounds=rounds, engine="local")))
    bare_round = (bare.plain if method == "sgd" else bare.private)(plan)
    seconds: dict[str, list[float]] = {"local": [], "bare": []}
    mark = time.process_time()

    def on_round(row: Row) -> None:
        nonlocal mark
        now = time.process_time()
        bare_round(row.round)
        if warmup < row.round < rounds:  # the last round has the end of the run in it
            seconds["local"].append(now - mark)
            seconds["bare"].append(time.process_time() - now)
        mark = time.process_time()

    folder = tempfile.mkdtemp(prefix="rounds-")
    try:
        directory = create(folder, plan.settings)
        directory.write_config(plan.settings)
        local.run(plan, directory, on_round=on_round)
    finally:
        shutil.rmtree(folder)
    ratios = [a / b for a, b in zip(seconds["local"], seconds["bare"], strict=True)]
    return {name: statistics.median(own) for name, own in seconds.items()} | {"ratio": estimate(ratios)}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", default=["lenet", "wide"], choices=list(jobs.MODELS))
    options.add_argument("--methods", nargs="+", default=["dpsgd", "lsg", "sgd"])
    given = options.parse_args()
    torch.set_num_threads(given.threads[0])
    results = {}
    print("| model | method | local, CPU s a round | bare loop | ratio |\n|---|---|---|---|---|")
    for model in given.models:
        for method in given.methods:
            found = measure(model, method, pairs=given.pairs, warmup=given.warmup)
            print(f"| {model} | {method} | {found['local']:.3f} | {found['bare']:.3f} | {found['ratio']} |", flush=True)
            results[f"{model} {method}"] = found | {"ratio": vars(found["ratio"])}
    write(given.json, {"rounds": results})


if __name__ == "__main__":
    main()
