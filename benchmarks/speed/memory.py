"""Peak memory of one training step above the memory of the idle process (which includes the model).

    python -m benchmarks.speed.memory --json FILE [--threads 1] [--pairs 30] [--models ...] [--arms
    ...] [--batch 16]

Each measurement is a fresh process: a warm-up step, then the kernel's high-water mark of another
step, minus the resident memory before it. The allocator returns freed memory at once
(MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_), so the mark counts live memory, not memory kept
for later. Needs Linux.
"""

import argparse
import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.pairs import parser, summary, table, write
from benchmarks.speed.arms import in_channels_last
from benchmarks.speed.step import ARMS
from benchmarks.speed.subjects import SMALL, SUBJECTS

GIVE_BACK = {"MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_MMAP_THRESHOLD_": "65536"}
TURNED = ", channels last"


def memory(field: str) -> float:
    """A line of /proc/self/status in MB (10^6 bytes): VmRSS now, VmHWM its largest value since the
    last reset.
    """
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024 / 1e6


def measure(options: argparse.Namespace) -> float:
    """Peak MB of one step above idle, in this process."""
    torch.set_num_threads(options.threads[0])
    subject = SUBJECTS[options.models[0]](options.batch)
    if options.only.endswith(TURNED):
        subject = in_channels_last(subject)
    step = ARMS[options.only.removesuffix(TURNED)](subject)
    step()  # libraries allocate their own buffers on the first call
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    idle = memory("VmRSS")
    step()
    return memory("VmHWM") - idle


def in_a_process(arm: str, model: str, options: argparse.Namespace) -> float | None:
    """``measure`` in a fresh process; None, and a line with the reason, if the arm cannot run."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.speed.memory",
        "--only",
        arm,
        "--models",
        model,
    ]
    command += ["--batch", str(options.batch), "--threads", str(options.threads[0])]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | GIVE_BACK
    )
    if done.returncode:
        said = (
            done.stderr.strip().splitlines() or [f"process ended with status {done.returncode}"]
        )[-1]
        print(f"{arm}: left out, {said}", flush=True)
        return None
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure every arm in processes of its own, print, write."""
    options = parser(__doc__)
    options.set_defaults(threads=(1,), pairs=5)
    options.add_argument("--models", nargs="+", default=list(SMALL), choices=list(SUBJECTS))
    options.add_argument("--arms", nargs="+", default=[*ARMS, "plain" + TURNED, "lsg p=0" + TURNED])
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--only", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.only:
        print(json.dumps(measure(chosen)))
        return
    results: list[dict[str, Any]] = []
    for model in chosen.models:
        found: dict[str, list[float]] = {arm: [] for arm in chosen.arms}
        for _ in range(chosen.pairs):
            for arm in list(found):
                peak = in_a_process(arm, model, chosen)
                if peak is None:
                    del found[arm]
                else:
                    found[arm].append(peak)
        medians = summary({"MB": found}, ["plain"])
        print(
            f"\n## {model}, batch {chosen.batch}: peak over idle, {chosen.pairs} processes an arm\n"
        )
        print(table(medians, "plain", unit="MB"), flush=True)
        results.append({"model": model, "batch": chosen.batch, "arms": medians})
        write(chosen.json, {"benchmark": "memory", "pairs": chosen.pairs, "results": results})


if __name__ == "__main__":
    main()
