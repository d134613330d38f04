"""How a private pass runs code of users, so that one example cannot reach the gradient of another.

Three levels: ``isolated``, ``rows`` and ``checked`` (``levels``). ``passes`` has the gradients of
each example at a level; at the first two, their guarantee holds whatever model and loss do.
"""

from fedlsg.gradients.isolation.levels import LEVELS, Isolation
from fedlsg.gradients.isolation.passes import block_gradients, per_example_gradients

__all__ = ["LEVELS", "Isolation", "block_gradients", "per_example_gradients"]
