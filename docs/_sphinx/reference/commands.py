"""Reference of the command line, from its own declarations."""

from collections.abc import Iterator

import click
import typer

from docs._sphinx.reference.markdown import page, table
from fedlsg.simulations.cli.command_line import app
from fedlsg.simulations.cli.options import WithSettings

STATUS = {
    "0": "done; for `audit`: not falsified",
    "1": "an expected failure: a setting, a file or data is wrong. One line on stderr says what "
    "and what to do. For `audit`: falsified",
    "2": "the command line itself is wrong: an unknown option, a missing argument",
    "129, 130, 143": "stopped by SIGHUP, Ctrl-C or SIGTERM: 128 and the signal's number. `fedlsg "
    "resume` continues a run",
}
"""Exit statuses, as ``fedlsg.simulations.cli.command_line.main`` returns them."""


def commands() -> str:
    """Every command with its arguments and options."""
    known = {name: one for name, one in command_line().commands.items() if not one.hidden}
    rows = (
        (f"[`fedlsg {name}`](#fedlsg-{name})", one.get_short_help_str(200))
        for name, one in known.items()
    )
    return page(
        "Command line",
        "`fedlsg COMMAND --help` prints what this page says.",
        table(("command", "what it does"), rows),
        "## Exit status",
        table(("status", "meaning"), STATUS.items()),
        *(part for name, one in known.items() for part in described(name, one)),
    )


def command_line() -> click.Group:
    """The commands as click has them."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    return group  # type: ignore[return-value]


def described(name: str, command: click.Command) -> Iterator[str]:
    """The section of a command."""
    yield f"## fedlsg {name}"
    with click.Context(command, info_name=f"fedlsg {name}") as context:
        yield f"`{' '.join([f'fedlsg {name}', *command.collect_usage_pieces(context)])}`"
        yield (command.help or "").strip()
        if isinstance(command, WithSettings):
            yield "Every [setting](../settings.md) is an option as well, as in `--learning-rate 0.5`."
        rows = [row for parameter in command.params for row in _row(parameter, context)]
    if rows:
        yield table(("argument or option", "meaning"), rows)


def _row(parameter: click.Parameter, context: click.Context) -> Iterator[tuple[str, str]]:
    found = parameter.get_help_record(context)
    if found is not None:
        yield f"`{found[0].strip()}`", " ".join(found[1].split())
