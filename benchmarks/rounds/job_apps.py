"""The ClientApp of fedlsg for the workload ``job``, which a Ray worker imports by name."""

import benchmarks.rounds.jobs  # noqa: F401 - registers the workload
from fedlsg.simulations.client.client_app import app as client

__all__ = ["client"]
