"""Start, memory and seconds of a round by the number of clients and over many rounds, with fitted
exponents.

    python -m benchmarks.speed.scale --json FILE [--clients 1000 10000 100000 1000000] [--rounds 20]
    [--long 1000]

A synthetic federation: every client has five rows of 16 numbers, 100 clients take part in a round,
engine ``local``. Each number of clients is a process of its own. Seconds are CPU seconds, but one
column. ``start``: from the settings, after imports, to the first round. ``memory``: the most that
the process needed. A round: the median of those after the
third. ``--long``: that many rounds with 1,000 clients: a round at the start and at the end, and
what the end of the run, a resume and the report take. An exponent is the slope of a straight line
through logarithms.
"""

import argparse
import itertools
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.pairs import write
from fedlsg.simulations import workloads
from fedlsg.simulations.server.callbacks import Callback
from fedlsg.simulations.workloads.base import LoadedWorkload, Request
from fedlsg.simulations.workloads.base.split import Split, rescale

ROWS, COLUMNS, COHORT = 5, 16, 100
WARM = 3
DEFAULTS: dict[str, Any] = {}
METHOD_DEFAULTS: dict[str, Any] = {}
"""This module is a workload without a preset: the page of a run asks."""


def load(request: Request) -> LoadedWorkload:
    """The workload ``crowd``; it has as many rows as ``options.train_rows`` says."""
    draw = np.random.default_rng(0)
    offset, scale = torch.tensor(127.5), torch.tensor(1 / 64)

    def split(count: int) -> Split:
        rows = draw.integers(256, size=(count, COLUMNS), dtype=np.uint8)
        labels = torch.from_numpy((rows[:, :3].sum(1) > 382).astype(np.int64))
        return Split(
            inputs=rows, labels=labels, prepare=lambda stored: rescale(stored, offset, scale)
        )

    return LoadedWorkload(
        name="crowd",
        train=split(request.options.train_rows or 5000),
        test=split(1000),
        num_classes=2,
        models={"mlp": _model},
        defaults={
            "learning_rate": 0.5,
            "momentum": 0.0,
            "clip_norm": 1.0,
            "delta": 1e-6,
            "partition": "iid",
        },
    )


def _model() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            body=nn.Sequential(nn.Linear(COLUMNS, 32), nn.ReLU()), classifier=nn.Linear(32, 2)
        )
    )


def register() -> None:
    """Make this module a workload of this process."""
    workloads._REGISTRY = MappingProxyType({**workloads._REGISTRY, "crowd": sys.modules[__name__]})


def measure(clients: int, rounds: int, folder: str) -> dict[str, Any]:
    """A run: CPU seconds of its parts, and of each round."""
    from fedlsg.simulations.engines import local
    from fedlsg.simulations.server.ready import ready_plan
    from fedlsg.simulations.settings.settings import from_mapping
    from fedlsg.simulations.storage.lock import create

    register()
    given = {
        "workload": "crowd",
        "method": "dpsgd",
        "engine": "local",
        "clients": clients,
        "clients_per_round": COHORT,
        "train_rows": ROWS * clients,
        "rounds": rounds,
        "sample_rate": 0.4,
        "epsilon": 4.0,
        "evaluate_every": 10**6,
    }
    began, wall = time.process_time(), time.perf_counter()
    plan = ready_plan(from_mapping(given))
    planned = time.process_time()
    starts, ends, peaks = list[float](), list[float](), list[int]()

    class First(Callback):
        def on_begin(self, run: Any) -> None:
            starts.extend([time.process_time(), time.perf_counter()])

    def on_round(row: Any) -> None:
        ends.append(time.process_time())
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    directory = create(f"{folder}/run", plan.settings)
    directory.write_config(plan.settings)
    summary = local.run(plan, directory, on_round=on_round, callbacks=[First()], page=False)
    last = time.process_time()
    each = [later - earlier for earlier, later in itertools.pairwise(ends)]
    return {
        "plan": planned - began,
        "start": starts[0] - began,
        "start_wall": starts[1] - wall,
        "memory": peaks[-1] / 1024,
        "round": statistics.median(each[WARM - 1 :]),
        "end": last - ends[-1],
        "epsilon": summary["epsilon_max"],
        "rounds": each,
    }


def after(folder: str) -> dict[str, float]:
    """Seconds that a finished run of ``measure`` takes to be resumed, and to be reported."""
    from fedlsg.simulations.engines import local
    from fedlsg.simulations.report.page_of_run.run_page import write_run_page
    from fedlsg.simulations.server.ready import ready_plan
    from fedlsg.simulations.storage.run_directory import RunDir

    register()
    run = RunDir.open(f"{folder}/run")
    plan = ready_plan(run.read_config())
    run.summary.unlink()
    began = time.process_time()
    local.run(plan, run, on_round=lambda row: None, page=False)
    between = time.process_time()
    write_run_page(run)
    size = (run.path / "report.html").stat().st_size
    return {"resume": between - began, "report": time.process_time() - between, "page": size / 1e6}


def process(call: str, folder: str) -> dict[str, Any]:
    """What a function of this module returns in a process of its own."""
    code = f"import json; from benchmarks.speed import scale; print(json.dumps(scale.{call}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def exponent(values: dict[int, float]) -> float:
    """The slope of log value over log number."""
    return float(np.polyfit(np.log(list(values)), np.log(list(values.values())), 1)[0])


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", type=Path)
    options.add_argument(
        "--clients", type=int, nargs="*", default=[1000, 10_000, 100_000, 1_000_000]
    )
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--long", type=int, nargs="*", default=[100, 1000])
    given = options.parse_args()
    if min(given.rounds, *given.long, math.inf) <= WARM:
        options.error(f"expected more than {WARM} rounds, which are warm-up")
    found: dict[str, dict[str, Any]] = {}
    print(
        "| clients | plan, CPU s | start | start, wall s | memory, MB | a round | end |\n"
        "|---|---|---|---|---|---|---|"
    )
    for clients in given.clients:
        with tempfile.TemporaryDirectory() as folder:
            found[str(clients)] = one = process(
                f"measure({clients}, {given.rounds}, {folder!r})", folder
            )
        parts = (one[key] for key in ("plan", "start", "start_wall", "memory", "round", "end"))
        print(
            "| {:,} | {:.2f} | {:.2f} | {:.2f} | {:.0f} | {:.4f} | {:.2f} |".format(
                clients, *parts
            ),
            flush=True,
        )
    long: dict[str, dict[str, Any]] = {}
    for rounds in given.long:
        with tempfile.TemporaryDirectory() as folder:
            one = process(f"measure(1000, {rounds}, {folder!r})", folder)
            long[str(rounds)] = one | process(f"after({folder!r})", folder)
    print(
        "| rounds | a round, first fifth, CPU s | last fifth | memory, MB | end | resume | report "
        "| page, MB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, one in long.items():
        later, fifth = one["rounds"][WARM:], max(len(one["rounds"]) // 5, 1)
        one["first"] = statistics.median(later[:fifth])
        one["last"] = statistics.median(later[-fifth:])
        parts = (one[key] for key in ("first", "last", "memory", "end", "resume", "report", "page"))
        print(
            "| {} | {:.4f} | {:.4f} | {:.0f} | {:.2f} | {:.2f} | {:.2f} | {:.1f} |".format(
                name, *parts
            )
        )
    exponents = {
        f"{name} over {what}": exponent({int(number): one[name] for number, one in group.items()})
        for what, group, names in (
            ("clients", found, ("start", "memory", "round")),
            ("rounds", long, ("last", "memory", "resume", "report")),
        )
        if len(group) > 1
        for name in names
    }
    print("; ".join(f"{name}: {value:.3f}" for name, value in exponents.items()))
    write(given.json, {"clients": found, "rounds": long, "exponents": exponents})


if __name__ == "__main__":
    main()
