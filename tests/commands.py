"""The ``fedlsg`` commands that documents show, and whether the command line takes them. Nothing is run."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import typer

import strategies
from simulations import workloads
from simulations.cli.app import app
from simulations.settings.published.catalogue import by_name, matching
from simulations.settings.settings import merge, parse

BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(fedlsg [a-z]+[^`]*)`")


def commands(text: str) -> list[str]:
    """Every ``fedlsg`` command of a document, in blocks and within code marks, without the comment behind it."""
    shown = [line for block in BLOCK.findall(text) for line in block.splitlines()] + INLINE.findall(text)
    plain = [re.sub(r"\s#.*", "", line).strip().replace("\\|", "|") for line in shown]
    return list(dict.fromkeys(line for line in plain if line.startswith("fedlsg ")))


def problem(command: str) -> str | None:
    """What the command line says against a command: an unknown option, setting, value or preset; or None."""
    name, *arguments = shlex.split(command)[1:]
    group: Any = typer.main.get_command(app)
    if name not in group.commands:
        return f"no command {name}"
    try:
        context = group.commands[name].make_context(name, arguments, parent=click.Context(group))
        given = {
            key: value for key, value in context.params.items() if key in ("workload", "method", "codec", "epsilon")
        }
        pairs = [pair.split(".", 1)[-1] if name == "compare" else pair for pair in context.params.get("config") or ()]
        parse({key: value for key, value in merge(given, pairs).items() if ".py:" not in str(value)})
    except (click.ClickException, ValueError) as error:
        return f"{command}: {error}"
    return next(unknown(name, context.params), None)


def unknown(name: str, given: dict[str, Any]) -> Iterator[str]:
    """Names of presets, methods and workloads that fedlsg does not have."""
    if name == "presets" and not matching(given["words"] or ""):
        yield f"no presets of {given['words']}"
    if given.get("preset") not in (None, *by_name()):
        yield f"no preset {given['preset']}"
    for method in f"{given.get('methods') or ''},{given.get('method') or ''}".split(","):
        if method not in ("", "all", *strategies.names()) and ".py:" not in method:
            yield f"no method {method}"
    workload = given.get("workload") or "digits"
    if workload not in workloads.names() and ".py:" not in workload:
        yield f"no workload {workload}"
