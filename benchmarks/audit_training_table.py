"""Which canary examples the training mode of the audit tells apart best, and whether its sensitivity check is honest.

    python benchmarks/audit_training_table.py --seeds 20 --out docs/results/audit_training.md

Many short runs of correct code on digits. If the check's standard error is right, (slope - 1) over it has deviation 1.
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

from fedlsg.attacks.metrics import mean_interval
from simulations.audit_examples import KINDS
from simulations.audit_subject import audited_settings
from simulations.audit_training import audit_training

SETTINGS = {"engine": "local", "clients": 2, "rounds": 10, "sample_rate": 0.5, "noise_multiplier": 1.0}


def measure(kind: str, seed: int, canaries: int) -> tuple[bool, float, float, float]:
    """Whether correct code is accused, the slope and the standard error that are stated, and mu of the estimate."""
    console = Console(file=io.StringIO())
    verdict, _, _ = audit_training(
        audited_settings(SETTINGS), console, canaries=canaries, kind=kind, plant=None, seed=seed
    )
    said = next(check.says for check in verdict.checks if check.name == "sensitivity")
    numbers = re.search(r"by (\S+) of what is claimed \(standard error (\S+)\)", said)
    assert numbers is not None
    return verdict.falsified, float(numbers[1]), float(numbers[2]), verdict.estimate.mu.value


def row(kind: str, seeds: int, canaries: int) -> str:
    """One line a kind."""
    found = [measure(kind, seed, canaries) for seed in range(seeds)]
    slope, error, mu = (torch.tensor(column) for column in list(zip(*found, strict=True))[1:])
    z = (slope - 1) / error
    return (
        f"| {kind} | {sum(one[0] for one in found)} of {seeds} | {mean_interval(slope)} | {error.mean():.2f} "
        f"| {z.std():.2f}, {z.max():.1f} | {mean_interval(mu)} |"
    )


def main() -> None:
    """Audit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--canaries", type=int, default=300)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    text = [
        "# Audit in training, digits",
        "",
        "| canaries | accused | slope (95 %) | stated s.e. | deviation and largest of (slope - 1) / s.e. | mu (95 %) |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        text.append(row(kind, args.seeds, args.canaries))
        print(text[-1], flush=True)
    settings = ", ".join(f"{key} {value}" for key, value in SETTINGS.items())
    text += [
        "",
        f"Correct code; lsg, {settings}; {args.canaries} canaries; seeds 0 to {args.seeds - 1}; {platform.machine()}, "
        f"one thread of a shared 2-core virtual machine, no GPU, {(time.monotonic() - began) / 60:.0f} minutes; torch "
        f"{torch.__version__}, Python {platform.python_version()}.",
        f"Command: `python benchmarks/audit_training_table.py {' '.join(sys.argv[1:])}`",
    ]
    if args.out is not None:
        args.out.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
