"""Runs of before version 0.1 that counted a client's own noise as protection against that client.

With trust=secure and colluders=0, or with trust=aggregate, each client added 1 / sqrt(m) of the noise, m the fewest
clients of a sum. Their epsilon holds for a reader outside of the sum. A client of the sum does not know m - 1 shares.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedlsg.accounting import Event, Spread, spread
from fedlsg.privacy.run_ledger import ClientCharges
from simulations.rundir.rundir import RunDir

PROMISED = "epsilon_promised"
"""What such a run said of its epsilon, in the summary that a reader gets."""
UNKNOWN = Spread(largest=math.inf, median=math.inf, worst=0)


def counts_own_noise(run: RunDir, settings: Mapping[str, Any]) -> bool:
    """Whether a run is one of those; ``settings``: by field name, resolved."""
    trust, survivors = settings.get("trust"), int(settings.get("min_survivors") or 1)
    if survivors < 2 or trust not in ("secure", "aggregate"):
        return False
    if trust == "secure":
        return not settings.get("colluders")
    entries = [entry for ledger in _ledgers(run) for entry in ledger.entries]
    if not entries:  # a finished run whose ledgers are gone: its summary would name readers if it were of today
        return run.summary.exists() and "epsilon_by_reader" not in json.loads(run.summary.read_text())
    return any(entry.private and not entry.min_survivors for entry in entries)


def refuse_own_noise(run: RunDir, settings: Mapping[str, Any] | None = None) -> None:
    """Raise ValueError for a run that counts a client's own noise; ``settings``: those of its config.toml if left out.

    What it promised is false, and a mechanism of today has other shares of the noise.
    """
    if counts_own_noise(run, run.read_values() if settings is None else settings):
        raise ValueError(
            f"{run.path} began with a version that counted each client's own noise as protection against that client: "
            "its epsilon is too small against every client. It cannot be continued, attacked or audited: start a new "
            "run (fedlsg report shows it, with the epsilon that holds)"
        )


def corrected(run: RunDir, settings: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a run with the epsilon that holds against each of its clients; as it is for all other runs."""
    said = float(summary["epsilon_max"])
    if "epsilon_by_reader" in summary or not math.isfinite(said) or not counts_own_noise(run, settings):
        return dict(summary)
    found = _against_a_client(run, int(settings["min_survivors"]), float(summary["delta"]))
    return {
        **summary,
        "epsilon_max": found.largest,
        "epsilon_median": found.median,
        "epsilon_by_reader": {"outside": said, "server": said, "participant": found.largest},
        PROMISED: said,
    }


def _against_a_client(run: RunDir, survivors: int, delta: float) -> Spread:
    left = math.sqrt((survivors - 1) / survivors) * (1 - 4 * 2.0**-53)
    population: Sequence[tuple[Event, ...]] = [
        tuple(replace(event, noise_multiplier=event.noise_multiplier * left) for event in ledger.events())
        for ledger in _ledgers(run)
    ]
    return spread(population, delta=delta) if any(population) else UNKNOWN


def _ledgers(run: RunDir) -> list[ClientCharges]:
    """Those of the clients. Raises ValueError for a damaged one."""
    ledger = run.charges
    return [ledger.of(client) for client in ledger.clients()]
