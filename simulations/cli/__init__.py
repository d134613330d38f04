"""The command line ``fedlsg``."""

INTERRUPTED = 130
"""Exit status after Ctrl-C."""
