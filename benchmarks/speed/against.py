"""The private step of this checkout against that of another one, interleaved in two processes that
take turns.

    git worktree add ../before COMMIT python -m benchmarks.speed.against ../before --json FILE
    [--pairs 30] [--models ...] [--arms ...] [--batch 16]

Each process imports fedlsg and the benchmark's own arms from its own checkout, and keeps freed
memory as a client does. Images and kernels are in channels-last memory. One thread. CPU seconds of
the step; the ratio is before / now in the same pair: above 1 this checkout is faster. On a shared
machine pin both to one processor: taskset -c 1 python -m ...
"""

import gc
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]


def serve(root: str, model: str, arm: str, batch: str) -> None:
    """Take a step of the checkout ``root`` for every line read, and answer with its CPU seconds."""
    import torch

    import fedlsg
    from benchmarks.speed.arms import OURS, in_channels_last
    from benchmarks.speed.subjects import SUBJECTS
    from fedlsg.tensors import keep_freed_memory

    assert Path(fedlsg.__file__).is_relative_to(root)
    keep_freed_memory()
    torch.set_num_threads(1)
    step = OURS[arm](in_channels_last(SUBJECTS[model](int(batch))))
    for _ in range(2):
        step()
    gc.disable()
    print("ready", flush=True)
    for _ in sys.stdin:
        gc.collect()
        before = time.process_time()
        step()
        print(time.process_time() - before, flush=True)


class Process:
    """A process that steps when it is asked to."""

    def __init__(self, root: Path, model: str, arm: str, batch: int) -> None:
        self.own = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, str(root), model, arm, str(batch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(root)},
        )

    def read(self) -> str:
        """The next line. Raises RuntimeError if the process has ended."""
        assert self.own.stdout is not None
        line = self.own.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the process of {self.own.args} ended; its error is printed above")
        return line

    def step(self) -> float:
        """CPU seconds of one step."""
        assert self.own.stdin is not None
        self.own.stdin.write("\n")
        self.own.stdin.flush()
        return float(self.read())

    def close(self) -> None:
        """End the process."""
        self.own.communicate()


def compare(before: Path, model: str, arm: str, *, batch: int, pairs: int) -> dict[str, Any]:
    """Medians of both checkouts, and the ratio of each pair with its interval."""
    from benchmarks.pairs import estimate

    both = [Process(root, model, arm, batch) for root in (before, HERE)]
    try:
        for process in both:
            process.read()  # it is ready
        seconds: list[list[float]] = [[], []]
        for turn in range(pairs):
            for which in (0, 1) if turn % 2 else (1, 0):
                seconds[which].append(both[which].step())
    finally:
        for process in both:
            process.close()
    ratio = estimate([old / new for old, new in zip(*seconds, strict=True)])
    medians = dict(zip(("before", "now"), map(statistics.median, seconds), strict=True))
    shortest = dict(zip(("before", "now"), map(min, seconds), strict=True))
    return {
        "model": model,
        "arm": arm,
        "median": medians,
        "shortest": shortest,
        "before / now": asdict(ratio),
    }


def main() -> None:
    """Measure, print, write."""
    from benchmarks.pairs import Estimate, parser, write
    from benchmarks.speed.arms import OURS
    from benchmarks.speed.subjects import SMALL, SUBJECTS

    options = parser(__doc__)
    options.add_argument("before", type=Path, help="folder of the other checkout")
    options.add_argument("--models", nargs="+", default=list(SMALL), choices=list(SUBJECTS))
    options.add_argument("--arms", nargs="+", default=["lsg p=0", "lsg p=.5"], choices=list(OURS))
    options.add_argument("--batch", type=int, default=16)
    chosen = options.parse_args()
    results = []
    for model in chosen.models:
        for arm in chosen.arms:
            found = compare(
                chosen.before.resolve(), model, arm, batch=chosen.batch, pairs=chosen.pairs
            )
            results.append(found | {"load": os.getloadavg()})
            print(
                f"{model}, {arm}: {Estimate(**found['before / now'])}, shortest "
                f"{found['shortest']}",
                flush=True,
            )
            write(chosen.json, {"benchmark": "against", "pairs": chosen.pairs, "results": results})


if __name__ == "__main__":
    # run with -m, or by its path as one of the two processes
    main() if __package__ else serve(*sys.argv[1:])
