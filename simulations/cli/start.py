"""Entry point of ``fedlsg``: nothing heavy is imported before Ctrl-C ends it in one line."""

import sys

from fedlsg.simulations.cli import INTERRUPTED


def main() -> None:
    """The command line; an interruption while it is still being imported is one line as well."""
    try:
        from fedlsg.simulations.cli.command_line import main as command_line
    except KeyboardInterrupt:
        print("fedlsg: error: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    command_line()
