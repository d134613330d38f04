"""One run at a time in a process: torch's generators, its number of threads and the names of user code are global.

Two runs in two threads would seed and draw from one generator, and neither would have the weights that it has alone.
So the second one waits. A thread may enter again what it has entered; an exception, an interruption of a notebook
included, lets the next one in. Code of others is not held: a model that another thread builds meanwhile draws from the
same generator, and changes what dropout draws here.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = "another run is going on in this process, in another thread: this one begins when it ends"

_TURN = threading.RLock()


@contextmanager
def alone() -> Iterator[None]:
    """Inside, no other thread of this process builds a model, takes a private step or runs a federation.

    Waits until the other thread is done, and says so in this package's log.
    """
    if not _TURN.acquire(blocking=False):
        logging.getLogger("fedlsg").warning(WAITING)
        _TURN.acquire()
    try:
        yield
    finally:
        _TURN.release()
