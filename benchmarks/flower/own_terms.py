"""Three hospitals with an epsilon and a delta of their own, in a deployment of real processes.

    python -m benchmarks.flower.own_terms [--rounds 10]

A SuperLink and three SuperNodes on loopback, whose node configs say what one run may spend. The
table has what each hospital's own ledger says when the run is over, and how much it counts.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.flower.deployment import deploy
from fedlsg.privacy import Ledger
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.lock import create
from fedlsg.simulations.storage.results import read_clients
from fedlsg.simulations.storage.run_directory import RunDir

TERMS = ({"epsilon": 1.0, "delta": 1e-6}, {"epsilon": 2.0}, {"epsilon": 4.0})
"""Of each node; where a node says nothing, the run does."""
RUN = {"workload": "digits", "method": "dpsgd", "clients": 3, "epsilon": 8.0, "weighting": "noise"}
DELTA = 1e-5
"""Of the run."""


def run_nodes(
    folder: Path, terms: Sequence[Mapping[str, float]], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary of a run, and for each node its row of clients.csv with ``own``: its epsilon at its
    delta, by the ledger in its own folder.
    """
    plan = make_plan(from_mapping({**RUN, **settings}))
    directory: RunDir = create(str(folder / "run"), plan.settings)
    said = replace(plan.settings, run_dir=str(directory.path), noise_multiplier=None)
    plan = replace(plan, settings=said)  # the noise is planned by what the nodes say
    own = [" ".join(f"{name}={value!r}" for name, value in one.items()) for one in terms]
    deployed = deploy(plan, folder / "flower", nodes=len(terms), own=own)
    if deployed.status != "finished:completed":
        raise RuntimeError(f"the run ended as {deployed.status}:\n{deployed.log[-2000:]}")
    rows = sorted(read_clients(directory), key=lambda row: int(row["client"]))
    for client, (row, one) in enumerate(zip(rows, terms, strict=True)):
        ledger = Ledger(folder / "flower" / f"node-{client}" / "ledger.jsonl", client)
        row["own"] = ledger.epsilon(one.get("delta", DELTA)).upper
        row["sigma"] = ledger.entries[-1].noise_multiplier
    return directory.read_summary(), rows


def main() -> None:
    """Print a table in Markdown."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=10)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="own-terms-") as folder:
        summary, rows = run_nodes(Path(folder), TERMS, {"rounds": given.rounds})
    print("| hospital | epsilon | delta | sigma | spent, by its own ledger | weight |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['client']} | {row['planned']:g} | {row['delta']:g} | {row['sigma']:.2f} "
            f"| {row['own']:.3f} | {row['weight']:.2f} |"
        )
    print(f"\n{given.rounds} rounds, test accuracy {100 * summary['accuracy']:.1f} %")


if __name__ == "__main__":
    main()
