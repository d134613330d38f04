"""Bars of the results of benchmarks.engines: every arm's round relative to the bare loop, with intervals.

    python -m benchmarks.engines_plot LENET.json WIDE.json --out FILE.svg

Two panels for each file: CPU seconds of all processes, and wall seconds.
"""

import argparse
import json
from pathlib import Path

from benchmarks.step_plot import Ratios, draw

CLOCKS = {"cpu": "CPU", "wall": "wall"}


def read(paths: list[Path]) -> Ratios:
    """Median and interval relative to the bare loop, by model and clock, and by arm."""
    found: Ratios = {}
    for path in paths:
        result = json.loads(path.read_text())
        for clock, word in CLOCKS.items():
            bars = found.setdefault(f"{result['model']}, {word}", {})
            for arm, clocks in result["engines"].items():
                bars[arm] = tuple(clocks[clock]["over bare"][key] for key in ("median", "low", "high"))
    return found


def main() -> None:
    """Read, draw."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="+", type=Path)
    options.add_argument("--out", type=Path, required=True)
    chosen = options.parse_args()
    draw(read(chosen.files), chosen.out, label="seconds of a round over the bare loop's", ours=("local", "ray"))


if __name__ == "__main__":
    main()
