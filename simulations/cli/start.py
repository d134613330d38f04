"""Entry point of ``fedlsg``: nothing heavy is imported before a signal ends it in one line."""

import sys

from fedlsg.simulations.engines import signals


def main() -> None:
    """The command line; an interruption while it is still being imported is one line as well."""
    signals.ending_command()
    try:
        from fedlsg.simulations.cli.command_line import main as command_line
    except KeyboardInterrupt:
        print("fedlsg: error: interrupted", file=sys.stderr)
        sys.exit(signals.status())
    command_line()
