"""Largest and median epsilon of 1,000 clients of unequal size: seconds, and how far the bounds are
above exact values.

    python -m benchmarks.privacy.accounting --json FILE [--clients 1000] [--exact]

Sizes are 20 to 500 examples, uniform in their logarithm, at batch size 10. Clients take part by a
public schedule of 10 % a round over 200 rounds. ``common``: one noise multiplier for all. ``own``:
each client's noise grows with its rate, which is the hard case: hardly any client's epsilon bounds
another's. ``--exact`` computes every client (a minute each) and shows how far the bounds are above
the exact values of the fast accountant.
"""

import random
import statistics
import time
from typing import Any

from benchmarks.pairs import parser, write
from fedlsg.accounting import ACCOUNTANTS, Event, Events, displayed, spread
from fedlsg.accounting.certified import upper_or_inf
from fedlsg.accounting.population import QUICK_ACCOUNTANTS, front
from fedlsg.config.selection import UNIFORM

DELTA, ROUNDS, BATCH = 1e-5, 200, 10


def make_events(clients: int, *, own_noise: bool) -> list[Events]:
    """The events in every client's ledger at the end of a run."""
    draw = random.Random(0)
    selected = [0] * clients
    for round in range(1, ROUNDS + 1):
        for client in UNIFORM.select(clients, clients // 10, round=round, seed=0):
            selected[client] += 1
    rates = [BATCH / int(20 * 25 ** draw.random()) for _ in range(clients)]
    noise = [2 * (q / 0.02) ** 0.8 if own_noise else 2.0 for q in rates]
    return [
        (Event(sample_rate=q, noise_multiplier=sigma, steps=max(steps, 1)),)
        for q, sigma, steps in zip(rates, noise, selected, strict=True)
    ]


def measure(population: list[Events], *, exact: bool) -> dict[str, Any]:
    """Seconds of one population: the epsilon shown in a round, the one at the end of a run, and
    every client's.
    """
    found: dict[str, Any] = {"different": len(set(population)), "front": len(front(population))}
    before = time.process_time()
    found["display"] = vars(displayed(population, delta=DELTA)) | {
        "seconds": time.process_time() - before
    }
    before = time.process_time()
    found["end"] = vars(spread(population, delta=DELTA, accountants=ACCOUNTANTS))
    found["end"] |= {"seconds": time.process_time() - before}
    if exact:
        before = time.process_time()
        each = [upper_or_inf(events, DELTA, QUICK_ACCOUNTANTS) for events in population]
        found["exact"] = {"largest": max(each), "median": statistics.median_high(each)}
        found["exact"]["seconds"] = time.process_time() - before
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--clients", type=int, default=1000)
    options.add_argument("--exact", action="store_true", help="also compute every client's epsilon")
    given = options.parse_args()
    results = {}
    for name, own_noise in (("common", False), ("own", True)):
        results[name] = measure(make_events(given.clients, own_noise=own_noise), exact=given.exact)
        print(
            f"{name} noise: {results[name]['different']} different clients, "
            f"{results[name]['front']} in the front"
        )
        for what in ("display", "end", "exact"):
            if what in results[name]:
                row = results[name][what]
                print(
                    f"  {what:8} {row['seconds']:7.2f} s  max {row['largest']:.4f}  median "
                    f"{row['median']:.4f}"
                )
    write(given.json, {"accounting": results})


if __name__ == "__main__":
    main()
