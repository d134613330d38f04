"""CPU seconds that a user of a run waits for accounting: plan, display and checks of a round, many
clients.

    python -m benchmarks.speed.waits --json FILE [--repeats 3]
    PYTHONPATH=CHECKOUT python -P benchmarks/speed/waits.py --json FILE      (of another checkout:
                                                                             before and after)

Each part is a process of its own. ``plan``: rates, noise and checks of the default job and of
federations by ``partition=dirichlet`` with ``batch_size``, without hints of earlier runs and,
``again``, with those of the first time.
``display``: epsilon of one client after each of 100 rounds. ``check``: whether each of 100 rounds
is within the budget,
for a client that is. ``clients``: what the server does in a round for the ledgers of many clients,
50 of them selected.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FEDERATIONS: dict[str, dict[str, Any]] = {"plan, default job": {}} | {
    f"plan, {n} clients that differ": {"clients": n, "partition": "dirichlet", "batch_size": 8}
    for n in (10, 100)
}
MANY = (1_000, 10_000, 100_000)


def plan(name: str) -> dict[str, float]:
    """Seconds of a plan after its data are there."""
    from fedlsg.simulations.planning import plan as plans
    from fedlsg.simulations.settings.with_preset import resolve

    base = plans.prepare(resolve({"workload": "digits", **FEDERATIONS[name]}))
    before = time.process_time()
    plans.client_terms(base)
    return {name: time.process_time() - before}


def rounds(name: str) -> dict[str, float]:
    """Seconds of a display and of a check, the mean of 100 rounds; the first of each is not
    counted.
    """
    from fedlsg.accounting import Event, calibrate_noise_multiplier, displayed
    from fedlsg.privacy import Entry, Ledger

    sigma = calibrate_noise_multiplier(epsilon=8.0, delta=1e-5, sample_rate=0.5, steps=100)
    spent: dict[str, list[float]] = {"display, a round": [], "check, a round and client": []}
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger", client=0)
        for round in range(1, 101):
            entry = Entry(
                client=0,
                round=round,
                attempt=0,
                steps=1,
                sample_rate=0.5,
                noise_multiplier=sigma,
                clip_norm=1.0,
                num_examples=100,
                mechanism="dp",
            )
            before = time.process_time()
            assert not ledger.would_exceed(entry, 8.0, 1e-5)
            between = time.process_time()
            displayed([(Event(sample_rate=0.5, noise_multiplier=sigma, steps=round),)], delta=1e-5)
            spent["check, a round and client"].append(between - before)
            spent["display, a round"].append(time.process_time() - between)
            ledger.charge(entry)
    return {name: statistics.fmean(seconds[1:]) for name, seconds in spent.items()}


def many(name: str) -> dict[str, float]:
    """Seconds of the ledgers of many clients: at the start, and in a round, the median of 20."""
    from fedlsg.privacy import Entry
    from fedlsg.privacy.run_ledger import RunLedger
    from fedlsg.simulations.server.spent import Spent

    found = {}
    for clients in MANY:
        with tempfile.TemporaryDirectory() as folder:
            ledgers = RunLedger(folder)
            run = SimpleNamespace(ledgers=Path(folder), charges=ledgers)
            before = time.process_time()
            spent = Spent(run, clients, delta=1e-7)  # type: ignore[arg-type]
            found[f"start, {clients:,} clients"] = time.process_time() - before
            seconds = []
            for round in range(1, 21):
                selected = [(37 * round + i) % clients for i in range(50)]
                ledgers.charge(
                    [
                        Entry(
                            client=client,
                            round=round,
                            attempt=0,
                            steps=1,
                            sample_rate=0.1,
                            noise_multiplier=2.0,
                            clip_norm=1.0,
                            num_examples=100,
                            mechanism="dp",
                        )
                        for client in selected
                    ]
                )
                before = time.process_time()
                spent.update(selected, [])
                spent.displayed()
                seconds.append(time.process_time() - before)
            found[f"ledgers of a round, {clients:,} clients"] = statistics.median(seconds)
    return found


def measured(part: str, hints: str) -> dict[str, float]:
    """A part in a process of its own."""
    env = {**os.environ, "FEDLSG_CACHE": hints, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, "--part", part],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", type=Path)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--part")
    given = options.parse_args()
    if given.part:
        work = plan if given.part in FEDERATIONS else many if given.part == "many" else rounds
        print(json.dumps(work(given.part)))
        return
    found: dict[str, list[float]] = {}
    for _ in range(given.repeats):
        with tempfile.TemporaryDirectory() as hints:
            for part in (
                *FEDERATIONS,
                *(f"{name}|again" for name in FEDERATIONS),
                "rounds",
                "many",
            ):
                for name, seconds in measured(part.partition("|")[0], hints).items():
                    found.setdefault(
                        name + (", again" if part.endswith("again") else ""), []
                    ).append(seconds)
    rows = {name: statistics.median(seconds) for name, seconds in found.items()}
    for name, seconds in rows.items():
        print(f"{name:40} {seconds:9.4f} s")
    if given.json:
        given.json.write_text(json.dumps({"cpu_seconds": rows}, indent=1))


if __name__ == "__main__":
    main()
