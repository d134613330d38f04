"""Which canary examples the audit in training distinguishes best, and whether its sensitivity check is calibrated.

    python benchmarks/audit_training_table.py --seeds 20 --out docs/results/audit_training.md
    python benchmarks/audit_training_table.py --method probe --out docs/results/audit_probe.md

Many short runs of correct code on digits. If the check's standard error is right, (slope - 1) divided by it has
deviation 1. The rows with little noise test the checks of payloads: there batches add far more than the noise. These
rows leave out the bounds, which take a minute at such a large epsilon, so only the checks can accuse.
"""

import argparse
import io
import platform
import re
import sys
import time
from pathlib import Path

import torch
from rich.console import Console

from fedlsg.attacks.audit.verdict import estimate, judge
from fedlsg.attacks.metrics import mean_interval
from simulations.audit import Audited, audited_settings
from simulations.audit.training import KINDS, find

SETTINGS = {"engine": "local", "clients": 2, "rounds": 10, "sample_rate": 0.5}
LITTLE_NOISE = (0.05, 0.1)


def measure(audited: Audited, kind: str, seed: int, canaries: int, bounds: bool) -> tuple[bool, float, float, float]:
    """Whether correct code is accused, the reported slope and standard error, and mu of the estimate."""
    console = Console(file=io.StringIO())
    found = find(audited, console, canaries=canaries, kind=kind, plant=None, seed=seed)
    said = next(check.says for check in found.checks if check.name == "sensitivity")
    numbers = re.search(r"by (\S+) of what is claimed \(standard error (\S+)\)", said)
    assert numbers is not None
    accused = not all(check.passed for check in found.checks)
    if bounds:
        accused = judge(found.scores, found.included, audited.claim, found.checks).falsified
    mu = estimate(found.scores[found.included], found.scores[~found.included], audited.claim.delta).mu.value
    return accused, float(numbers[1]), float(numbers[2]), mu


def row(method: str, kind: str, sigma: float, seeds: int, canaries: int) -> str:
    """One line for each kind and sigma."""
    audited, bounds = (
        audited_settings(SETTINGS | {"method": method, "noise_multiplier": sigma}),
        sigma not in LITTLE_NOISE,
    )
    found = [measure(audited, kind, seed, canaries, bounds) for seed in range(seeds)]
    slope, error, mu = (torch.tensor(column) for column in list(zip(*found, strict=True))[1:])
    z = (slope - 1) / error
    accused = sum(one[0] for one in found)
    return (
        f"| {kind} | {sigma:g} | {accused} of {seeds} | {mean_interval(slope)} | {error.mean():.2f} "
        f"| {z.std():.2f}, {z.max():.1f} | {mean_interval(mu)} |"
    )


def main() -> None:
    """Audit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="lsg")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--canaries", type=int, default=300)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    text = [
        "# Audit in training, digits",
        "",
        "| canaries | sigma | accused | slope (95 %) | stated standard error "
        "| (slope - 1) / standard error: deviation, largest | mu (95 %) |",
        "|---|---|---|---|---|---|---|",
    ]
    usual = [(kind, 1.0) for kind in KINDS]
    for kind, sigma in [*usual, *(("two-tone", sigma) for sigma in LITTLE_NOISE)]:
        text.append(row(args.method, kind, sigma, args.seeds, args.canaries))
        print(text[-1], flush=True)
    settings = ", ".join(f"{key} {value}" for key, value in SETTINGS.items())
    text += [
        "",
        f"Correct code; {args.method}, {settings}; {args.canaries} canaries; below sigma 1 only the checks accuse, "
        f"no bounds computed; seeds 0 to {args.seeds - 1}; {platform.machine()}, "
        f"one thread of a shared 2-core virtual machine, no GPU, {(time.monotonic() - began) / 60:.0f} minutes; torch "
        f"{torch.__version__}, Python {platform.python_version()}.",
        f"Command: `python benchmarks/audit_training_table.py {' '.join(sys.argv[1:])}`",
    ]
    if args.out is not None:
        args.out.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
