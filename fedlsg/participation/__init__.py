"""Who takes part in a round, and when its reply arrives: public draws, and a simulated clock.

Nothing here reads private data: computing times come from declared numbers of examples, never from a drawn batch.
"""

from fedlsg.participation.health import Health
from fedlsg.participation.limit import ClientLimit
from fedlsg.participation.participation import Finish, Participation, Traffic
from fedlsg.participation.selection import draw_order, select_clients
from fedlsg.participation.trace import Trace, read_trace

__all__ = [
    "ClientLimit", "Finish", "Health", "Participation", "Trace", "Traffic", "draw_order", "read_trace",
    "select_clients",
]  # fmt: skip
