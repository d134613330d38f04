"""Deployed clients that train under reproducible noise, which the real ones refuse: a deployed run
can then be compared with a simulated one, byte by byte.

Importable on its own: the SuperNodes' processes find it through PYTHONPATH.
"""

from dataclasses import replace

from fedlsg.privacy.ledger import Entry
from fedlsg.simulations.client import deployed
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.client.deployed import NodeAccount
from fedlsg.simulations.client.node.node_config import NodeConfig
from fedlsg.simulations.settings.settings import Settings

__all__ = ["app"]

_usable = deployed.usable


def usable(settings: Settings, terms: NodeConfig) -> Settings:
    """As the real one, without its first refusal."""
    return replace(
        _usable(replace(settings, reproducible=False), terms), reproducible=settings.reproducible
    )


def charge(account: NodeAccount, entry: Entry) -> None:
    """As the real one, without its refusal of reproducible entries."""
    account.folder.charge(entry, account.budgets)


deployed.usable = usable
NodeAccount.charge = charge  # type: ignore[method-assign]
