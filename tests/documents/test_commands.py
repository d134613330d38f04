"""Every command line of the documents is one that the programs take, with settings that exist and are in range."""

import re

import click

from tests.documents.blocks import DOCUMENTS, commands, inline, name_of
from tests.documents.check_commands import check, check_flwr, options_without_place

BENCHMARK = re.compile(r"`(python (?:-m benchmarks\.|benchmarks/)[^`\n]+)`")


def problems(text: str) -> list[str]:
    """Command lines of a document that are wrong, each with the reason."""
    found = []
    sentences = inline(text)
    for line in [*commands(text, "fedlsg"), *sentences]:
        try:
            check(line, named=line in sentences)
        except (ValueError, KeyError, OSError, click.ClickException) as error:
            said = error.format_message() if isinstance(error, click.ClickException) else str(error)
            found += [] if "needs the package: pip install" in said else [f"{line}: {said}"]
    for line in commands(text, "flwr run"):
        try:
            check_flwr(line)
        except (ValueError, click.ClickException) as error:
            found.append(f"{line}: {error}")
    for line in [
        *commands(text, "python -m benchmarks"),
        *commands(text, "python benchmarks"),
        *BENCHMARK.findall(text),
    ]:
        try:
            found += [f"{line}: no option {option}" for option in options_without_place(line)]
        except FileNotFoundError as error:
            found.append(f"{line}: no file {error.filename}")
    return found


def test_every_command_line_is_taken(reader):
    wrong = {name_of(path): found for path in DOCUMENTS if (found := problems(path.read_text()))}
    assert not wrong, "\n".join(f"{name}: {line}" for name, lines in wrong.items() for line in lines)
