"""Bars of the results of benchmarks.step: every arm's CPU seconds relative to the plain step, with intervals.

    python -m benchmarks.step_plot STEP.json [STEP.json ...] --out FILE.svg

One panel for each model. If several files have an arm, the first one counts.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

Ratios = dict[str, dict[str, tuple[float, float, float]]]


def read(paths: Sequence[Path]) -> Ratios:
    """Median and interval relative to the plain step, by model and arm, for one thread."""
    found: Ratios = {}
    for path in paths:
        for result in json.loads(path.read_text())["results"]:
            if result["threads"] == 1:
                bars = found.setdefault(result["model"], {})
                for arm, clocks in result["arms"].items():
                    bars.setdefault(arm, tuple(clocks["cpu"]["over plain"][key] for key in ("median", "low", "high")))
    return found


def draw(
    found: Mapping[str, Mapping[str, tuple[float, float, float]]],
    out: Path,
    *,
    label: str = "CPU seconds over the plain step's",
    ours: tuple[str, ...] = ("lsg", "dpsgd"),
) -> None:
    """Write the figure; arms that begin with ``ours`` stand out."""
    import matplotlib.pyplot as plt

    height = 0.9 + 0.27 * max(len(bars) for bars in found.values())
    columns = min(2, len(found))
    rows = math.ceil(len(found) / columns)
    figure, panels = plt.subplots(rows, columns, figsize=(5.2 * columns, height * rows), squeeze=False)
    for panel, (model, bars) in zip(panels.flat, found.items(), strict=True):
        arms = sorted(bars, key=lambda arm: bars[arm][0], reverse=True)
        middles = [bars[arm][0] for arm in arms]
        errors = [[bars[arm][0] - bars[arm][1] for arm in arms], [bars[arm][2] - bars[arm][0] for arm in arms]]
        colours = ["tab:orange" if arm.startswith(ours) else "tab:gray" for arm in arms]
        panel.barh(arms, middles, xerr=errors, color=colours, error_kw={"elinewidth": 1})
        panel.axvline(1, color="black", linewidth=0.8)
        for row, middle in enumerate(middles):
            panel.text(max(middle, errors[1][row] + middle) + 0.03, row, f"{middle:.2f}", va="center", fontsize=8)
        panel.set(title=model, xlabel=label, xlim=(0, max(middles) * 1.25))
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    """Read, draw."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="+", type=Path)
    options.add_argument("--out", type=Path, required=True)
    chosen = options.parse_args()
    draw(read(chosen.files), chosen.out)


if __name__ == "__main__":
    main()
