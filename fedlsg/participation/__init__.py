"""Who takes part in a round, and when its reply arrives: public draws, and a simulated clock.

Nothing here reads private data: computing times come from declared numbers of examples, never from a drawn batch.
"""

from fedlsg.participation.participation import Finish, Participation, Traffic
from fedlsg.participation.selection import select_clients
from fedlsg.participation.trace import Trace, read_trace

__all__ = ["Finish", "Participation", "Trace", "Traffic", "read_trace", "select_clients"]
