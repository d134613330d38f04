"""A client that never comes back is stopped at the deadline, whatever it does with exceptions."""

import contextlib
import signal
import threading
import time

import pytest

from fedlsg.simulations.client.virtual import OutOfTimeError, ending


def hang() -> None:
    """Swallows every ``Exception``."""
    while True:
        with contextlib.suppress(Exception):
            time.sleep(60)


def test_a_client_that_hangs_is_stopped_at_the_deadline():
    start = time.monotonic()
    with pytest.raises(OutOfTimeError), ending(time.time() + 0.2):
        hang()
    assert 0.1 < time.monotonic() - start < 10
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_in_time_nothing_is_stopped_and_the_timer_is_off_again():
    before = signal.getsignal(signal.SIGALRM)
    with ending(time.time() + 0.05):
        pass
    time.sleep(0.1)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize("until", [None, 1.0])
def test_without_a_deadline_or_outside_the_main_thread_nothing_is_stopped(until):
    done = []

    def work() -> None:
        with ending(until):
            done.append(1)

    if until is None:
        work()
    else:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert done == [1]
