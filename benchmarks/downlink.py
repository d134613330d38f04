"""Full and sparse downlink: accuracy and bytes on digits, bytes on CIFAR-10.

    python -m benchmarks.downlink --out docs/results/downlink.json [--seeds 3] [--only digits|cifar10]

Every row is a ``fedlsg run`` in its own process, with secret batches and noise. ``last`` is the last round: in it
clients that took part in every round receive one update. CIFAR-10 (FEDLSG_DATA) measures only bytes.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.pairs import machine

WAYS = {
    "full, float32": ["--codec", "float32"],
    "sparse, float32": ["--codec", "float32", "--downlink", "sparse"],
    "full, noise-floor": ["--codec", "noise-floor"],
    "sparse, noise-floor": ["--codec", "noise-floor", "--downlink", "sparse"],
    "sparse, noise-floor 1": ["--codec", "noise-floor", "--downlink", "sparse", "-c", "noise-floor-step=1"],
}
DIGITS = ["digits", "--method", "lsg", "--epsilon", "8"]
CIFAR10 = ["cifar10", "--clients", "5", "--rounds", "3", "--noise-multiplier", "1", "-c", "model=dp-cnn"]
CIFAR10 += ["-c", "sample-rate=0.005", "-c", "evaluate-every=3", "-c", "momentum=0"]
METHODS = {
    "lsg r16 p0.3": ["--method", "lsg", "--rank", "16", "--sparsity", "0.3"],
    "lsg r4 p0.5": ["--method", "lsg", "--rank", "4", "--sparsity", "0.5"],
    "rs p0.9": ["--method", "rs", "--sparsity", "0.9", "-c", "cooling=no"],
}


def run(options: list[str], seed: int = 0) -> dict[str, Any]:
    """Summary of one ``fedlsg run``, with its rows."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "simulations", "run", *options, "--engine", "local", "--seed", str(seed)]
        subprocess.run([*command, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        with (out / "rounds.csv").open(newline="") as file:
            return summary | {"rows": list(csv.DictReader(file))}


def row(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds; bytes a message."""
    messages = [sum(int(r["downlink_messages"]) for r in one["rows"]) for one in runs]
    last = [one["rows"][-1] for one in runs]
    accuracies = [100 * one["accuracy"] for one in runs]
    found = {
        "name": name,
        "accuracies": accuracies,
        "accuracy": statistics.mean(accuracies),
        "sd": statistics.stdev(accuracies) if len(runs) > 1 else None,
        "epsilon_max": max(one["epsilon_max"] for one in runs),
        "dense": statistics.mean(one["downlink_bytes_dense"] / n for one, n in zip(runs, messages, strict=True)),
        "uplink": statistics.mean(one["uplink_bytes"] / n for one, n in zip(runs, messages, strict=True)),
        "downlink": statistics.mean(one["downlink_bytes"] / n for one, n in zip(runs, messages, strict=True)),
        "wire": statistics.mean(one["downlink_bytes_wire"] / n for one, n in zip(runs, messages, strict=True)),
        "last": statistics.mean(int(r["downlink_bytes"]) / int(r["downlink_messages"]) for r in last),
        "last_wire": statistics.mean(int(r["downlink_bytes_wire"]) / int(r["downlink_messages"]) for r in last),
        "dense_over_downlink": statistics.mean(one["downlink_bytes_dense"] / one["downlink_bytes"] for one in runs),
        "seconds": statistics.mean(one["wall_seconds"] for one in runs),
    }
    found["dense_over_last"] = found["dense"] / found["last"]
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("digits", "cifar10"))
    options = parser.parse_args()
    found: dict[str, Any] = {}
    about = machine() | {"command": " ".join(["python -m benchmarks.downlink", *sys.argv[1:]])}
    if options.only in (None, "digits"):
        rows = [row(name, [run(DIGITS + way, seed) for seed in range(options.seeds)]) for name, way in WAYS.items()]
        found["digits"] = {"rows": rows, "machine": about}
    if options.only in (None, "cifar10"):
        ways = {name: way for name, way in WAYS.items() if name.startswith("sparse, ")}
        rows = [
            row(f"{method}; {name}", [run(CIFAR10 + choices + way)])
            for method, choices in METHODS.items()
            for name, way in ways.items()
        ]
        found["cifar10"] = {"rows": rows, "machine": about}
    if options.out is not None:
        before = json.loads(options.out.read_text()) if options.out.exists() else {}
        options.out.write_text(json.dumps(before | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
