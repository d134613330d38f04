"""A part of the public face: private, sparse, low-rank training in a Flower app of your own.

app = fedlsg.flower.client_app(workload)                             client_app.py
result = fedlsg.flower.Strategy(workload, epsilon=8.0).start(grid)   server_app.py

An app that keeps its own training: the mod ``private_update`` of its ClientApp, or the mod
``PrivateNode`` and ``reply`` with a PrivateStep; and ``PrivateUpdates`` around its strategy.
``record`` keeps what leaves, for ``fedlsg attack``.
"""

from fedlsg.simulations.flower_apps.client import client_app
from fedlsg.simulations.flower_apps.private_node import PrivateNode, reply
from fedlsg.simulations.flower_apps.private_update import private_update
from fedlsg.simulations.flower_apps.private_updates import PrivateUpdates
from fedlsg.simulations.flower_apps.record import record
from fedlsg.simulations.flower_apps.server import Strategy

__all__ = [
    "PrivateNode",
    "PrivateUpdates",
    "Strategy",
    "client_app",
    "private_update",
    "record",
    "reply",
]
