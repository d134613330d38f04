"""How far reported epsilons are above exact ones, and seconds of a search for sigma against Opacus'
search.

    python -m benchmarks.privacy.accounting_exact --json FILE [--seconds 300]

The gap: over a grid of sample rates, noise multipliers, steps and deltas, in a fixed random order
until ``--seconds`` are over. Exact values are closed forms (full batches, one step) or inversions
of a Laplace transform (`exact_epsilon`), which shares no code with fedlsg.accounting and refuses
where it does not converge. The search: `calibrate_noise_multiplier`, with its witness and without,
and `opacus.accountants.utils.get_noise_multiplier` (PRV, its default tolerance of .01 in epsilon),
interleaved. Without Opacus its column is empty.
"""

import importlib.util
import itertools
import math
import random
import statistics
import time
import warnings
from dataclasses import replace
from typing import Any

from benchmarks.pairs import parser, write
from benchmarks.privacy.exact_epsilon import full_batch, inverted, one_step
from fedlsg.accounting import (
    AccountingError,
    Event,
    calibrate,
    calibrate_noise_multiplier,
    certified,
    epsilon,
    pld,
    prv,
)

RATES = (1e-5, 1e-3, 0.03, 0.5, 1.0)
NOISES = (0.3, 0.8, 4.0, 50.0, 1e3)
STEPS = (1, 30, 3000, 10**5, 10**7)
DELTAS = (1e-2, 1e-6, 1e-11, 1e-15)
SEARCHES = ((0.02, 100), (0.002, 10_000), (0.001, 30_000))
TARGET, DELTA, REPEATS = 2.0, 1e-5, 3


def exact(q: float, sigma: float, steps: int, delta: float, near: float) -> float:
    """The exact epsilon, NaN where none of the ways is applicable."""
    if q == 1:
        return full_batch(sigma, steps, delta)
    if steps == 1:
        return one_step(q, sigma, delta)
    try:
        return inverted([(q, sigma, steps)], delta, near=near) if near > 0 else math.nan
    except (ValueError, ArithmeticError):
        return math.nan


def gaps(seconds: float) -> dict[str, Any]:
    """One row for each setting: ours, exact, the gap, and CPU seconds."""
    settings = list(itertools.product(RATES, NOISES, STEPS, DELTAS))
    random.Random(0).shuffle(settings)
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + seconds
    for q, sigma, steps, delta in settings:
        if time.monotonic() > end:
            break
        before = time.process_time()
        try:
            bound = epsilon(
                sample_rate=q,
                noise_multiplier=sigma,
                steps=steps,
                delta=delta,
                accountants=("pld",),
            )
        except AccountingError as error:
            rows.append({"setting": (q, sigma, steps, delta), "refused": str(error)})
            continue
        spent = time.process_time() - before
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            truth = exact(q, sigma, steps, delta, bound.upper)
        gap = bound.upper / truth - 1 if truth > 0 else math.nan
        rows.append(
            {
                "setting": (q, sigma, steps, delta),
                "accountant": bound.accountant,
                "lower": bound.lower,
                "gap": gap,
            }
            | {"upper": bound.upper, "exact": truth, "seconds": spent}
        )
    return {"rows": rows, "of": len(settings)}


def search(q: float, steps: int) -> dict[str, Any]:
    """CPU seconds of each search, the median of REPEATS, and the sigma that it found."""
    setting = {"epsilon": TARGET, "delta": DELTA, "sample_rate": q, "steps": steps}
    event = Event(sample_rate=q, noise_multiplier=1.0, steps=steps)

    def ours() -> float:
        calibrate.forget()
        for cached in (pld.interval, pld.chernoff, prv.interval):
            cached.cache_clear()
        return calibrate_noise_multiplier(**setting)  # type: ignore[arg-type]

    def unwitnessed() -> float:
        pld.interval.cache_clear()
        pld.chernoff.cache_clear()
        return calibrate.smallest_sigma(
            lambda sigma: certified.rough([replace(event, noise_multiplier=sigma)], DELTA),
            lambda sigma: certified.certified_or_inf(
                [replace(event, noise_multiplier=sigma)], DELTA
            ),
            TARGET,
        )

    arms = {"ours": ours, "ours, not witnessed": unwitnessed}
    if importlib.util.find_spec("opacus"):
        from opacus.accountants.utils import get_noise_multiplier

        arms["opacus"] = lambda: get_noise_multiplier(
            target_epsilon=TARGET, target_delta=DELTA, sample_rate=q, steps=steps, accountant="prv"
        )
    found: dict[str, Any] = {name: {"seconds": [], "sigma": math.nan} for name in arms}
    for _ in range(REPEATS):
        for name, arm in arms.items():
            before = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name]["sigma"] = arm()
            found[name]["seconds"].append(time.process_time() - before)
    return {
        name: row | {"median": statistics.median(row["seconds"])} for name, row in found.items()
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=300.0, help="for the grid")
    given = options.parse_args()
    searches = {}
    for q, steps in SEARCHES:
        searches[f"{q:g}, {steps}"] = rows = search(q, steps)
        print(
            f"sigma for epsilon {TARGET:g} at q = {q:g}, {steps:,} steps (CPU seconds, median of "
            f"{REPEATS})"
        )
        for name, row in rows.items():
            print(f"  {name:20} {row['median']:7.2f} s  sigma {row['sigma']:.5f}")
        if "opacus" not in rows:
            print("  opacus is not installed")
    found = gaps(given.seconds)
    rows = [row for row in found["rows"] if math.isfinite(row.get("gap", math.nan))]
    print(
        f"{len(found['rows'])} of {found['of']} settings, {len(rows)} with a positive exact value"
    )
    if rows:
        worst = max(rows, key=lambda row: row["gap"])
        print(
            f"  gap: smallest {min(r['gap'] for r in rows):.1e}, median "
            f"{statistics.median(r['gap'] for r in rows):.1e}"
        )
        print(f"  largest {worst['gap']:.1e}, at q, sigma, T, delta = {worst['setting']}")
    seconds = [row["seconds"] for row in found["rows"] if "seconds" in row]
    print(f"  CPU seconds: median {statistics.median(seconds):.3f}, largest {max(seconds):.1f}")
    for row in found["rows"]:
        if "refused" in row:
            print(f"  refused {row['setting']}: {row['refused']}")
    write(given.json, {"accounting_exact": {"searches": searches, **found}})


if __name__ == "__main__":
    main()
