"""SIGTERM and SIGHUP end a command as Ctrl-C does."""

import os
import signal

import pytest

from simulations.engines.process import sigterm_raises


def test_sigterm_raises_inside_only_and_leaves_what_nohup_ignores():
    def hang_up_and_end() -> None:
        with sigterm_raises():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as end:
            hang_up_and_end()
    finally:
        signal.signal(signal.SIGHUP, hangup)
    assert end.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
