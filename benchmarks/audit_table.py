"""Does the audit accuse correct code, and does it find what is planted? Unit mode on digits, one table.

    python benchmarks/audit_table.py --seeds 20 --methods lsg,rgp,rs,dpsgd

Prints a line an audit; the last lines count accusations of correct code and plants that were missed.
"""

import argparse
import time

import torch

from fedlsg.attacks.audit import judge
from fedlsg.attacks.audit_checks import displacement, noise_checks
from fedlsg.attacks.plants import PLANTS, planted
from fedlsg.attacks.unit_mode import record
from simulations.audit_subject import Audited, audited_settings


def audit(audited: Audited, plant: str | None, canaries: int, seed: int) -> tuple[str, str]:
    """The verdict in words, and a line about its figures."""
    setting = audited.setting
    began = time.monotonic()
    with planted(plant):
        seen = record(setting, canaries, seed=seed)
    checks = noise_checks(seen.silent, kept=setting.frame.kept, noise_std=setting.noise_std)
    verdict = judge(seen.scores, seen.coins, audited.claim, (displacement(seen.moves, seen.coins), *checks))
    figures = (
        f"one-run {verdict.one_run.epsilon:.2f}, f-DP {verdict.f_dp.epsilon:.2f}, "
        f"GDP {verdict.estimate.epsilon.value:.2f}, {time.monotonic() - began:.0f} s"
    )
    return verdict.words, f"{verdict.words} {', '.join(verdict.reasons)} ({figures})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default="lsg")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--canaries", type=int, default=5000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    accused, missed = [], []
    for method in args.methods.split(","):
        audited = audited_settings({"method": method, "epsilon": args.epsilon})
        for seed in range(args.seeds):
            words, line = audit(audited, None, args.canaries, seed)
            print(f"{method} seed {seed}: {line}", flush=True)
            accused += [(method, seed)] * (words == "falsified")
        for plant in PLANTS:
            words, line = audit(audited, plant, args.canaries, 0)
            print(f"{method} {plant}: {line}", flush=True)
            missed += [(method, plant)] * (words != "falsified")
    print(f"correct code accused: {accused or 'never'}; plants missed: {missed or 'none'}")


if __name__ == "__main__":
    main()
