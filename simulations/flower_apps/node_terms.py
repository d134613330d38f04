"""Ledger and limits of a node that trains by an app's own code, not by fedlsg's client.

    flower-supernode --node-config "partition-id=0 ledger-dir='/srv/ledger' epsilon-max=8.0
                                    delta-max=1e-5 noise-multiplier-min=1.0"

The arguments of the app hold everywhere. A node config can only make them stricter.
"""

import math
from pathlib import Path

from flwr.app import Context

from fedlsg.accounting.checks import checked_delta, checked_epsilon
from fedlsg.owner_only import make_parents
from fedlsg.privacy.limits import Limits
from fedlsg.simulations.client.client_app import is_simulated
from fedlsg.simulations.client.node.node_config import (
    absolute,
    least_noise,
    number_of,
    refuse_misspelt,
)
from fedlsg.simulations.client.node.refusals import SettingsError


def checked_limits(epsilon: float, delta: float, least_noise_multiplier: float) -> Limits:
    """The limits of an app. Raises ValueError for numbers that are out of range."""
    least = least_noise_multiplier
    if isinstance(least, bool) or not isinstance(least, int | float) or not 0 <= least < math.inf:
        raise ValueError(
            f"expected {least_noise_multiplier=!r} >= 0, the least noise that this client accepts"
        )
    return Limits(
        budgets=((checked_epsilon(epsilon), checked_delta(delta)),),
        least_noise_multiplier=float(least),
    )


def limits_on(context: Context, of_app: Limits) -> Limits:
    """The limits of the app and of the node config together. Raises TermsError for a bad config."""
    config = context.node_config
    refuse_misspelt(config)
    budgets = of_app.budgets  # every pair of budgets is a limit of its own: all of them hold
    if {"epsilon-max", "delta-max"} & set(config):
        epsilon_max = number_of(config, "epsilon-max", below=math.inf)
        budgets += ((epsilon_max, number_of(config, "delta-max", below=1.0)),)
    least = max(of_app.least_noise_multiplier, least_noise(config))
    return Limits(budgets=budgets, least_noise_multiplier=least)


def ledger_on(context: Context, folder: Path | None, caller: str) -> tuple[int, Path]:
    """This client's number and its ledger's file.

    Simulated clients have one for each run, since no person's data are behind them.

    folder: of the app; ledger-dir of the node config takes precedence.
    caller: the user's function, for the message.

    Raises SettingsError if neither the app nor the node config names a folder for the ledger.
    """
    ledger_dir = context.node_config.get("ledger-dir")
    if ledger_dir is not None:
        folder = absolute(str(ledger_dir), "ledger-dir")
    if folder is None:
        raise SettingsError(
            f"no ledger that lasts: give {caller}(ledger=FOLDER), or ledger-dir in the node "
            "config; a restart would forget what was spent"
        )
    client = int(context.node_config.get("partition-id", 0))
    if is_simulated(context):
        folder = folder / f"run-{context.run_id}"
    make_parents(folder, private=True)
    return client, folder / f"client-{client}.jsonl"
