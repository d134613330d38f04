"""Tests send SIGINT to programs that they start: in the background, a shell would have it ignored for all of them."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
