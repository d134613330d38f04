"""Participation: which clients a round has, and when their replies arrive.

Public draws and a simulated clock decide it. Nothing here reads private data: computing times come
from declared numbers of examples, never from the size of a batch.
"""

from fedlsg.participation.availability_trace import Trace, read_trace
from fedlsg.participation.draw import Finish, Participation, Traffic
from fedlsg.participation.health import Health

__all__ = [
    "Finish",
    "Health",
    "Participation",
    "Trace",
    "Traffic",
    "read_trace",
]
