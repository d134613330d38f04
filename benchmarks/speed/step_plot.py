"""Bars of the results of benchmarks.speed.step or benchmarks.rounds.engines: every arm's seconds
over the first one's.

    python -m benchmarks.speed.step_plot STEP.json [STEP.json ...] --out FILE.svg

One panel for each model, of engines one for each clock. If several files have an arm, the first one
counts.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

OURS = ("lsg", "dpsgd", "local", "ray")
Ratios = dict[str, dict[str, tuple[float, float, float]]]


def read(paths: Sequence[Path]) -> Ratios:
    """Median and interval relative to the plain step, for one thread, or to the bare loop; by model
    and arm.
    """
    found: Ratios = {}
    for path in paths:
        everything = json.loads(path.read_text())
        for clock in ("cpu", "wall") if "engines" in everything else ():
            bars = found.setdefault(f"{everything['model']}, {clock}", {})
            for arm, clocks in everything["engines"].items():
                bars.setdefault(
                    arm, tuple(clocks[clock]["over bare"][key] for key in ("median", "low", "high"))
                )
        for result in everything.get("results", ()):
            if result["threads"] == 1:
                bars = found.setdefault(result["model"], {})
                for arm, clocks in result["arms"].items():
                    bars.setdefault(
                        arm,
                        tuple(
                            clocks["cpu"]["over plain"][key] for key in ("median", "low", "high")
                        ),
                    )
    return found


def draw(
    found: Mapping[str, Mapping[str, tuple[float, float, float]]], out: Path, *, label: str
) -> None:
    """Write the figure; fedlsg's own arms stand out."""
    import matplotlib.pyplot as plt

    height = 0.9 + 0.27 * max(len(bars) for bars in found.values())
    columns = min(2, len(found))
    rows = math.ceil(len(found) / columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(5.2 * columns, height * rows), squeeze=False
    )
    for panel, (model, bars) in zip(panels.flat, found.items(), strict=True):
        arms = sorted(bars, key=lambda arm: bars[arm][0], reverse=True)
        middles = [bars[arm][0] for arm in arms]
        errors = [
            [bars[arm][0] - bars[arm][1] for arm in arms],
            [bars[arm][2] - bars[arm][0] for arm in arms],
        ]
        colours = ["tab:orange" if arm.startswith(OURS) else "tab:gray" for arm in arms]
        panel.barh(arms, middles, xerr=errors, color=colours, error_kw={"elinewidth": 1})
        panel.axvline(1, color="black", linewidth=0.8)
        for row, middle in enumerate(middles):
            panel.text(
                max(middle, errors[1][row] + middle) + 0.03,
                row,
                f"{middle:.2f}",
                va="center",
                fontsize=8,
            )
        panel.set(title=model, xlabel=label, xlim=(0, max(middles) * 1.25))
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    """Read, draw."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("files", nargs="+", type=Path)
    options.add_argument("--out", type=Path, required=True)
    chosen = options.parse_args()
    rounds = "engines" in json.loads(chosen.files[0].read_text())
    label = (
        "seconds of a round over the bare loop's" if rounds else "CPU seconds over the plain step's"
    )
    draw(read(chosen.files), chosen.out, label=label)


if __name__ == "__main__":
    main()
