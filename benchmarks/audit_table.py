"""False and true alarms of the audit: correct code and planted mistakes, unit mode on digits, one table.

    python benchmarks/audit_table.py --seeds 20 --methods lsg,rgp,rs,dpsgd --out docs/results/audit.md

Prints a line for each audit. For correct code every seed draws its own random bits, batches and noise. Each plant has
one audit. The seconds are those of ``fedlsg audit --plant``, from its start to its verdict, with one thread.
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fedlsg.attacks.audit.checks import unit_checks
from fedlsg.attacks.audit.plants import ONLY_SUMS, PLANTS, planted
from fedlsg.attacks.audit.unit_mode import record
from fedlsg.attacks.audit.verdict import Verdict, judge
from simulations.audit import Audited, audited_settings

TIMED = ("halved-noise", "per-block-clip")
METHODS: dict[str, dict[str, Any]] = {"lsg": {"sparsity": 0.5}, "rs": {"sparsity": 0.5}}
"""Changed parameters of a method: half of the coordinates are masked, so that there is a mask to audit."""


def audit(audited: Audited, plant: str | None, canaries: int, seed: int) -> Verdict:
    """The verdict on this method with this plant."""
    setting = audited.setting
    with planted(plant, clients=setting.stated.members):
        seen = record(setting, canaries, seed=seed)
    return judge(seen.scores, seen.included, audited.claim, unit_checks(seen, setting))


def figures(verdict: Verdict) -> tuple[float, float, float]:
    """One-run bound, f-DP bound, GDP estimate."""
    return verdict.one_run.epsilon, verdict.f_dp.epsilon, verdict.estimate.epsilon.value


def seconds(given: dict[str, Any], plant: str) -> str:
    """Wall seconds and CPU seconds of the command. Raises RuntimeError if the audit finds nothing."""
    own = [f"-c{key}={value}" for key, value in given.items() if key != "method"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "simulations", "audit", "--method", given["method"], "--plant", plant, *own]
        began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = subprocess.run([*command, "--out", f"{folder}/audit.json"], stdout=subprocess.DEVNULL)
        spent, now = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        written = Path(folder, "audit.json").exists()
    if ended.returncode != 1 or not written:
        raise RuntimeError(f"expected status 1, falsified, of {' '.join(command)}, got {ended.returncode}")
    return f"{spent:.0f}, {now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime:.0f}"


def settings(audited: Audited, own: dict[str, Any]) -> tuple[str, str]:
    """The settings of one audit as text: the method with its changed parameters, and the rest."""
    base, setting = audited.subject.base, audited.setting
    changed = "".join(f" ({key} {value})" for key, value in own.items())
    return f"`{base.settings.method}`{changed}", (
        f"{len(base.parts)} clients, {setting.rounds} rounds at q = {setting.local.sample_rate:g}, "
        f"C = {setting.mechanism.clip_norm:g}, sigma {audited.claim.noise_multiplier:.3f}"
    )


def gather(stated: list[tuple[str, str]]) -> str:
    """The settings of all methods; methods with equal settings share one entry."""
    alike: dict[str, list[str]] = {}
    for name, rest in stated:
        alike.setdefault(rest, []).append(name)
    return "; ".join(f"{', '.join(names)} with {rest}" for rest, names in alike.items())


def rows(method: str, args: argparse.Namespace) -> tuple[str, list[str], tuple[str, str]]:
    """A row for correct code, one for each plant, and the settings."""
    given = {"method": method, "epsilon": args.epsilon, **METHODS.get(method, {})}
    audited = audited_settings(given)
    clean = []
    for seed in range(args.seeds):
        clean.append(audit(audited, None, args.canaries, seed))
        print(method, seed, clean[-1].words, *clean[-1].reasons, figures(clean[-1]), flush=True)
    ranges = (f"{min(column):.1f} to {max(column):.1f}" for column in zip(*map(figures, clean), strict=True))
    accused = sum(verdict.falsified for verdict in clean)
    frame = audited.setting.frame
    first = f"| `{method}` | {frame.kept} | {audited.claim.steps} | {accused} of {args.seeds} | {' | '.join(ranges)} |"
    found = []
    for plant in PLANTS:
        if plant in ONLY_SUMS:
            continue  # see audit_modes.py
        verdict = audit(audited, plant, args.canaries, 0)
        print(method, plant, verdict.words, *verdict.reasons, figures(verdict), flush=True)
        names = dict.fromkeys(reason.split(",")[0] for reason in verdict.reasons)
        spent = seconds(given, plant) if plant in TIMED else ""
        numbers = " | ".join(f"{value:.1f}" for value in figures(verdict))
        found.append(f"| `{method}` | {plant} | {', '.join(names) or '**missed**'} | {numbers} | {spent} |")
    return first, found, settings(audited, METHODS.get(method, {}))


def main() -> None:
    """Audit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="lsg")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--canaries", type=int, default=5000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    clean, plants, stated, began = [], [], [], time.monotonic()
    for method in args.methods.split(","):
        first, found, setting = rows(method, args)
        clean.append(first)
        plants += found
        stated.append(setting)
    text = [
        "Correct code:", "",
        "| method | values | steps | accused | one-run bound | f-DP one-run bound | GDP estimate |",
        "|---|---|---|---|---|---|---|", *clean, "",
        "Planted mistakes:", "",
        "| method | plant | falsified by | one-run bound | f-DP one-run bound | GDP estimate | seconds: wall, CPU |",
        "|---|---|---|---|---|---|---|", *plants, "",
        f"Settings: {gather(stated)}; all else is the method's recipe on digits.",
        "",
        f"Claimed epsilon {args.epsilon:g} at delta 1e-5, {args.canaries} canaries. Seeds 0 to {args.seeds - 1} of "
        f"correct code, seed 0 of plants; {platform.machine()}, one thread of a shared 2-core virtual machine, no GPU, "
        f"{(time.monotonic() - began) / 60:.0f} minutes; torch {torch.__version__}, Python "
        f"{platform.python_version()}.",
        f"Command: `python benchmarks/audit_table.py {' '.join(sys.argv[1:])}`",
    ]  # fmt: skip
    print("\n".join(text))
    if args.out is not None:
        args.out.write_text("\n".join(["# Audit of the mechanism, unit mode, digits", "", *text, ""]))


if __name__ == "__main__":
    main()
