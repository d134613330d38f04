"""A part of the public face: private, sparse, low-rank training in a Flower app of your own.

app = fedlsg.flower.client_app(workload)                             client_app.py
result = fedlsg.flower.Strategy(workload, epsilon=8.0).start(grid)   server_app.py
"""

from simulations.flower.client import client_app
from simulations.flower.server import Strategy

__all__ = ["Strategy", "client_app"]
