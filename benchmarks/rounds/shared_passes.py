"""CPU seconds of a private round with and without passes that clients share, and with Opacus for
each client.

    JOB="100 20 100 20" python -m benchmarks.rounds.shared_passes --json FILE [--models mlp lenet]
    [--pairs 6]

One process: rounds of the ``local`` engine take turns, one with passes and one without, each
followed by a round of the loop with Opacus on the same clients and, for an MLP, by one of its
arithmetic alone. Job: ``benchmarks.rounds.jobs``.
"""

import shutil
import statistics
import tempfile
import time
from typing import Any

import torch

from benchmarks.pairs import estimate, parser, write
from benchmarks.rounds import bare, jobs
from fedlsg.simulations.engines import local, shared_passes
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.lock import create
from fedlsg.simulations.storage.round_tables import Row


def measure(model: str, method: str, *, pairs: int) -> dict[str, Any]:
    """Medians of each arm, and ratios of the rounds that follow each other."""
    plan = make_plan(
        from_mapping(jobs.settings(model, method, rounds=2 * pairs + 3, engine="local"))
    )
    others = {"opacus": bare.opacus(plan), "bare": bare.private(plan)}
    if model.startswith("mlp"):
        others |= {
            "floor": bare.floor(plan, payloads=False),
            "floor, payloads": bare.floor(plan, payloads=True),
        }
    arms = ("passes", "alone", *others)
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    shared, mark = shared_passes.passes, time.process_time()

    def on_round(row: Row) -> None:
        nonlocal mark
        took = time.process_time() - mark
        # of this round; the next one is of the other arm
        arm = "passes" if row.round % 2 else "alone"
        if row.round > 2:
            seconds[arm].append(took)
        shared_passes.passes = (
            (lambda pile, *_: [[task] for task in pile]) if row.round % 2 else shared
        )
        for name, one in others.items() if row.round % 2 == 0 else ():
            mark = time.process_time()
            one(row.round)
            if row.round > 2:
                seconds[name].append(time.process_time() - mark)
        mark = time.process_time()

    folder = tempfile.mkdtemp(prefix="passes-")
    try:
        directory = create(folder, plan.settings)
        directory.write_config(plan.settings)
        local.run(plan, directory, on_round=on_round)
    finally:
        shared_passes.passes = shared
        shutil.rmtree(folder)
    found: dict[str, Any] = {name: statistics.median(own) for name, own in seconds.items()}
    for name in arms[1:]:
        found[f"{name} / passes"] = estimate(
            [a / b for a, b in zip(seconds[name], seconds["passes"], strict=False)]
        )
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", default=["mlp", "lenet"], choices=list(jobs.MODELS))
    options.add_argument("--method", default="dpsgd")
    given = options.parse_args()
    torch.set_num_threads(given.threads[0])
    results = {}
    for model in given.models:
        results[model] = measure(model, given.method, pairs=given.pairs)
        print(model, {name: str(value) for name, value in results[model].items()}, flush=True)
    write(
        given.json,
        {m: {k: getattr(v, "__dict__", v) for k, v in own.items()} for m, own in results.items()},
    )


if __name__ == "__main__":
    main()
