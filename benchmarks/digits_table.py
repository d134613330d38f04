"""The table of docs/results/digits.md: every method on digits over seeds, as separate ``fedlsg run`` commands.

    python benchmarks/digits_table.py --out docs/results/digits.md [--seeds 3] [--engine local] [-- extra options]

Weights, partition and carriers depend on the seed. Batches and noise are secret and differ in every run, so another run
gives other last digits. The presets were chosen on a fifth of the training split, not on the test
split that is reported here.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

METHODS = ("lsg", "rgp", "rgp-random", "rs", "dpsgd", "sgd")


def measure(method: str, seed: int, engine: str, folder: Path, extra: list[str]) -> dict[str, Any]:
    """Summary of one run."""
    out = folder / f"{method}-{seed}"
    command = ["run", "digits", "--method", method, "--seed", str(seed), "--engine", engine, "--out", str(out), *extra]
    subprocess.run([sys.executable, "-m", "simulations", *command], check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def row(method: str, runs: list[dict[str, Any]]) -> str:
    """One line of the Markdown table."""
    accuracies = [100 * run["accuracy"] for run in runs]
    spread = statistics.stdev(accuracies) if len(runs) > 1 else float("nan")
    last = runs[-1]
    epsilon = max(float(run["epsilon_max"]) for run in runs)
    messages = last["rounds"] * last["clients"]
    up, dense = last["uplink_bytes"] / messages, last["uplink_bytes_dense"] / messages
    minutes = statistics.median(run["wall_seconds"] for run in runs)
    private = f"{epsilon:.3f}" if last["private"] else "not private"
    return (
        f"| `{method}` | {statistics.mean(accuracies):.1f} ± {spread:.1f} | {private} | {up:,.0f} | {dense / up:.1f}x "
        f"| {last['uplink_bytes_wire'] / messages:,.0f} | {minutes:.0f} |"
    )


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("extra", nargs="*")
    options = parser.parse_args()
    lines = [
        "| method | test accuracy, % | epsilon at delta 1e-5 | uplink bytes | smaller than dense | bytes on the wire "
        "| seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for method in options.methods:
            seeds = range(options.seeds)
            runs = [measure(method, seed, options.engine, Path(folder), options.extra) for seed in seeds]
            versions = runs[-1]["versions"]
            lines.append(row(method, runs))
            print(lines[-1], flush=True)
    note = (
        f"Seeds 0 to {options.seeds - 1}, engine {options.engine}, {platform.machine()}, one thread; torch "
        f"{versions['torch']}, flwr {versions['flwr']}, Python {versions['python']}. Command: "
        f"`python benchmarks/digits_table.py {' '.join(sys.argv[1:])}`"
    )
    text = "\n".join([*lines, "", note, ""])
    if options.out is not None:
        options.out.write_text("# digits, default preset\n\n" + text)
    print("\n" + text)


if __name__ == "__main__":
    main()
