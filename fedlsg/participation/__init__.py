"""Who takes part in a round, and when its reply arrives: public draws, and a simulated clock.

Nothing here reads private data: computing times come from declared numbers of examples, never from
a drawn batch.
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
