"""Reads a command line of a document as the program does, up to the point where work would
begin.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import click
import pytest
import torch
import typer
from flwr.common.config import parse_config_args
from torch import nn

import fedlsg.simulations.compare.compare_command
import fedlsg.simulations.compare.search
import fedlsg.simulations.engines
import fedlsg.simulations.run.commands
from fedlsg.config.choices import choose
from fedlsg.config.partitions import SCHEMES
from fedlsg.payload import find_codec
from fedlsg.simulations import workloads
from fedlsg.simulations.attacks.images_attack import IMAGE_ATTACKS
from fedlsg.simulations.attacks.texts_attack import TEXT_ATTACKS
from fedlsg.simulations.cli.command_line import app
from fedlsg.simulations.cli.options import WithSettings, option_of
from fedlsg.simulations.inspection import refuse_settings
from fedlsg.simulations.settings.published import find, matching
from fedlsg.simulations.settings.resolve import build_method, fill
from fedlsg.simulations.settings.settings import RUN, Settings, all_settings, merge
from fedlsg.simulations.settings.with_preset import from_run_config, resolve
from tests.places import REPOSITORY

PLACEHOLDER = re.compile(r"^[A-Z][A-Z_/|]*$|^\.\.\.$|[\[$]")
"""What a sentence writes for something else: RUN, NAME, [RUN], ..., $variable."""
FOLDERS = ("RUN", "DIR", "MIRROR")
UNTIL_WORK = ("run", "compare")
"""Commands whose own code is called: it stops where the plan would be made."""
LOOKS_AT = ("seed", "device")
"""Options of commands that look at a run, of the name of a setting but with a meaning of their
own.
"""
BUNDLE = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


class WorkBeginsError(Exception):
    """The command line is right."""


@cache
def command_line() -> click.Group:
    """``fedlsg`` as click has it. Made once: it has a thousand options."""
    return typer.main.get_command(app)  # type: ignore[return-value]


@contextmanager
def without_work() -> Iterator[None]:
    """Commands raise ``WorkBeginsError`` instead of working; settings of a run are filled up and
    checked before.
    """

    def begin(*_: Any, **__: Any) -> None:
        raise WorkBeginsError

    def fill_and_begin(settings: Settings, **_: Any) -> None:
        fit_together(settings)
        raise WorkBeginsError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedlsg.simulations.run.commands, "ready_plan", fill_and_begin)
        patch.setattr(workloads, "load", begin)
        patch.setattr(fedlsg.simulations.compare.compare_command, "compare_command", begin)
        patch.setattr(fedlsg.simulations.compare.search, "search_and_runs", begin)
        patch.setattr(fedlsg.simulations.engines, "ahead", lambda *_, **__: nullcontext())
        patch.setattr(fedlsg.simulations.engines, "use_cluster", lambda *_: None)
        yield


def fit_together(settings: Settings) -> None:
    """Method and codec of a run exist and fit together, with the workload's preset but without its
    data.
    """
    defaults, of_methods = workloads.presets(settings.workload)
    workload = SimpleNamespace(
        name=settings.workload,
        defaults=defaults,
        method_defaults=of_methods,
        parts=None,
        default_model="model",
        models={settings.model or "model": partial(nn.Linear, 8, 8)},
        classifier=None,
        train=range(1000),
        test=SimpleNamespace(labels=torch.zeros(1, dtype=torch.int64)),
        builders=None,
        features=None,
    )
    of_data = (settings.partition or defaults.get("partition")) not in (*SCHEMES, None)
    filled = fill(replace(settings, clients=2) if of_data else settings, workload)  # type: ignore[arg-type]
    find_codec(filled.codec).check(build_method(filled))


def check(line: str, *, named: bool = False) -> None:
    """Read a command line of ``fedlsg``; raises what the program would: a usage error, or
    ValueError.

    named: a sentence that has the command alone speaks of it, and calls nothing.
    """
    name, *arguments = shlex.split(line, comments=True)[1:] or ["--help"]
    if name.startswith(("-", "COMMAND")):
        return
    if name not in command_line().commands:
        raise ValueError(f"no command {name!r}")
    command = command_line().commands[name]
    if named and not arguments:
        return
    if left_open(arguments) or (
        named and name == "compare" and not {"--methods", "--grid"} & set(arguments)
    ):
        return check_options(command, arguments)
    context = command.make_context(f"fedlsg {name}", list(arguments))
    if any(PLACEHOLDER.search(str(value)) for value in settings_of(context).values()):
        return
    check_look(name, context)
    if name not in UNTIL_WORK:
        return check_settings(name, context)
    try:
        with without_work():
            command.invoke(context)
    except WorkBeginsError:
        pass


def left_open(arguments: list[str]) -> bool:
    """Whether the words stand for others, except for folders, which are not looked at before work
    begins.
    """
    return any(PLACEHOLDER.search(word) for word in arguments if word not in FOLDERS)


def check_options(command: click.Command, arguments: list[str]) -> None:
    """The options of a line that leaves something open exist."""
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    if isinstance(command, WithSettings):
        known |= {"--help-all", *map(option_of, all_settings())}
    for word in arguments:
        if word.startswith("-") and word not in known:
            raise ValueError(f"no option {word} of fedlsg {command.name}")


def settings_of(context: click.Context) -> dict[str, Any]:
    """The settings of a run among the words: options of that name, and ``-c``."""
    options = {
        name: value for name, value in context.params.items() if name in RUN and value is not None
    }
    return merge(options, context.params.get("config"))


def check_settings(name: str, context: click.Context) -> None:
    """The settings, or names, of a command that is not called are known and in range."""
    if name == "settings" and context.params["name"]:
        all_settings()[context.params["name"]]
    elif name == "list" and context.params["words"]:
        if not matching(context.params["words"]):
            find(context.params["words"])
    elif (given := settings_of(context)) and name != "resume":
        fit_together(resolve({key: value for key, value in given.items() if key not in LOOKS_AT}))


def check_look(name: str, context: click.Context) -> None:
    """What a command that looks at a run refuses: settings next to the run, a workload in its
    place, a gone attack.
    """
    if name in ("inspect", "audit"):
        given = {key: value for key, value in settings_of(context).items() if key not in LOOKS_AT}
        refuse_settings(context.params["directory"], given)
    elif name == "attack" and (attacks := context.params["attacks"]):
        for attack in attacks.split(","):
            choose("attack", attack, {**IMAGE_ATTACKS, **TEXT_ATTACKS})


def check_flwr(line: str) -> None:
    """The run config of ``flwr run``: keys that Flower takes, settings that fedlsg takes. Raises
    ValueError.
    """
    words = shlex.split(line, comments=True)
    if "--run-config" not in words or words[words.index("--run-config") + 1].endswith(".toml"):
        return
    given = parse_config_args([words[words.index("--run-config") + 1]])
    if unknown := given.keys() - BUNDLE.keys():
        raise ValueError(f"Flower refuses {unknown}")
    from_run_config({**BUNDLE, **given})


def options_without_place(line: str) -> list[str]:
    """Options of a benchmark's command line that its own files do not declare."""
    words = shlex.split(line, comments=True)
    path = words[2].replace(".", "/") + ".py" if words[1] == "-m" else words[1]
    texts = (REPOSITORY / path).read_text()
    helpers = re.findall(r"from (benchmarks\.[\w.]+) import", texts)
    files = [REPOSITORY / f"{helper.replace('.', '/')}.py" for helper in helpers]
    texts += "".join(file.read_text() for file in files if file.exists())  # the others are folders
    options = [word.replace("--no-", "--") for word in words if word.startswith("--")]
    # as a whole, or as a number with a default, which benchmarks.privacy.digits_client makes an
    # option of
    declared = r'"{0}"|"{1}": \d|\b{1}=\d'
    return [
        option
        for option in options
        if not re.search(declared.format(option, option.removeprefix("--")), texts)
    ]
