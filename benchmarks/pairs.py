"""Interleaved timing: every arm once in each round, in rotating order, and ratios of arms within
one round.

A disturbance of the machine that lasts longer than a round affects all arms equally. A ratio is the
median over the rounds of (arm's seconds / reference's seconds in the same round), with a percentile
bootstrap interval of that median. Seconds are read from the wall clock and from the process's CPU
clock. On a shared machine, use CPU seconds if one thread works.
"""

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median with its 95 % interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def estimate(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """The median of the values, and the 2.5th and 97.5th percentile of the medians of their
    resamples.
    """
    sample = np.asarray(values)
    draws = np.random.default_rng(seed).integers(len(sample), size=(RESAMPLES, len(sample)))
    low, high = np.percentile(np.median(sample[draws], axis=1), [2.5, 97.5])
    return Estimate(median=float(np.median(sample)), low=float(low), high=float(high))


def interleave(
    arms: Mapping[str, Callable[[], object]],
    *,
    pairs: int,
    warmup: int = 2,
    settle: Callable[[], object] = lambda: None,
) -> dict[str, dict[str, list[float]]]:
    """Seconds of every arm in every round, by clock and arm. The first ``warmup`` rounds are
    dropped.

    ``settle`` waits until a device has finished its work; this time counts for the arm.
    """
    names = list(arms)
    seconds: dict[str, dict[str, list[float]]] = {
        clock: {name: [] for name in names} for clock in CLOCKS
    }
    gc.collect()
    gc.disable()  # a collection would be charged to whichever arm it strikes
    try:
        for turn in range(warmup + pairs):
            start = turn % len(names)
            for name in names[start:] + names[:start]:
                before = {clock: now() for clock, now in CLOCKS.items()}
                arms[name]()
                settle()
                for clock, now in CLOCKS.items():
                    if turn >= warmup:
                        seconds[clock][name].append(now() - before[clock])
            gc.collect()
    finally:
        gc.enable()
    return seconds


def ratios(seconds: Mapping[str, Sequence[float]], reference: str) -> dict[str, Estimate]:
    """Every arm's ratio to the reference arm."""
    base = seconds[reference]
    return {
        name: estimate([a / b for a, b in zip(own, base, strict=True)])
        for name, own in seconds.items()
    }


def summary(
    measured: Mapping[str, Mapping[str, Sequence[float]]], references: Sequence[str]
) -> dict[str, Any]:
    """Median of every arm and its ratio to each reference, for each quantity; the content of the
    JSON file.
    """
    return {
        name: {
            kind: {
                "median": statistics.median(by_arm[name]),
                **{f"over {r}": asdict(ratios(by_arm, r)[name]) for r in references if r in by_arm},
            }
            for kind, by_arm in measured.items()
        }
        for name in next(iter(measured.values()))
    }


def table(found: Mapping[str, Any], reference: str, *, unit: str = "s") -> str:
    """A Markdown table of one summary: medians of the first quantity, and ratios to one reference
    for all.
    """
    kinds = list(next(iter(found.values())))
    over = "".join(f" over {reference}, {kind} |" for kind in kinds)
    lines = [f"| arm | {unit} |{over}", "|---|---|" + "---|" * len(kinds)]
    for name, by_kind in found.items():
        shares = "".join(f" {Estimate(**by_kind[kind][f'over {reference}'])} |" for kind in kinds)
        lines.append(f"| {name} | {by_kind[kinds[0]]['median']:.4g} |{shares}")
    return "\n".join(lines)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything measured to FILE"
    )
    options.add_argument(
        "--threads",
        type=numbers,
        default=(1, 2),
        metavar="1,2",
        help="numbers of threads to measure",
    )
    options.add_argument("--pairs", type=int, default=30, help="rounds that are measured")
    options.add_argument("--warmup", type=int, default=2, help="rounds before these, not measured")
    return options


def numbers(text: str) -> tuple[int, ...]:
    """Comma-separated numbers."""
    return tuple(int(part) for part in text.split(","))


def machine() -> dict[str, Any]:
    """The machine and the versions of a measurement."""
    cpuinfo, spec = Path("/proc/cpuinfo"), sys.modules["__main__"].__spec__
    names = (
        [
            line.partition(":")[2].strip()
            for line in cpuinfo.read_text().splitlines()
            if "model name" in line
        ]
        if (cpuinfo.exists())
        else []
    )
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "command": " ".join(
            [f"python -m {spec.name if spec else Path(sys.argv[0]).stem}", *sys.argv[1:]]
        ),
    }


def write(path: Path | None, results: Mapping[str, Any]) -> None:
    """Write the results and the machine as JSON, if a file is given."""
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n")
