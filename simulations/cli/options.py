"""Options of the command line; each setting is one: ``--learning-rate 0.5``.

``--learning-rate 0.5`` means ``-c learning_rate=0.5``. These options are not declared one by one:
an option that a command does not have is a setting, or else an error. The error names the nearest
option, setting, value, method, codec or workload. Settings of methods are known after an import of
torch, which is slow, so that it is made for unknown names only.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, Any

import click
import typer
import typer.core
from click.shell_completion import CompletionItem
from rich.console import Console

from fedlsg.config import Declared
from fedlsg.config.choices import MEANINGS, nearest, plain
from fedlsg.config.foreign import in_our_words
from fedlsg.config.partitions import SCHEMES
from fedlsg.simulations.planning.trust import READS, allow_code
from fedlsg.simulations.settings.any_run import Device
from fedlsg.simulations.settings.settings import GROUPS_OF_RUN, KNOWN, RUN, all_settings, code_in

console = Console()


def starting() -> AbstractContextManager[Any]:
    """A live line on a terminal during the imports of a command, which take seconds."""
    return console.status("starting")


def option(*names: str, help: str, metavar: str | None = None) -> Any:
    """An option whose help text names the default itself, because a workload may decide it."""
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


def setting(name: str, *names: str) -> Any:
    """The option of a setting of every run; its help is that of the declaration."""
    return option(*names, help=_sentence(RUN[name]))


def device_in(given: dict[str, Any]) -> Device:
    """Take the setting ``device`` out of ``given``: it is that of the command, not of its run.

    Raises ValueError for anything that is not a device.
    """
    device: Device = RUN["device"].parse(given.pop("device", RUN["device"].default))
    return device


def let_run(
    runs: Sequence[str], given: dict[str, Any], trust_code: bool, *, needs: Collection[str] = READS
) -> dict[str, Any]:
    """Permit the code that run directories name, as ``allow_code``; returns the other settings."""

    def say(line: str) -> None:
        console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)

    used = set[str]()
    for run in runs:
        path = Path(run).expanduser()
        used.update(allow_code(path, given, trust_code=trust_code, needs=needs, say=say))
    return {name: value for name, value in given.items() if name not in used}


def only_code(given: dict[str, Any]) -> dict[str, Any]:
    """``given``, if all of its settings name code. Raises ValueError for others."""
    if other := sorted(given.keys() - code_in(given).keys()):
        raise ValueError(
            f"a run has its settings; leave out {', '.join(other)}, or name its own code as "
            "FILE.py:NAME"
        )
    return given


TrustCode = Annotated[
    bool,
    option(
        "--trust-code",
        help="Run the code that RUN names, as it was recorded; prints file and digest before.",
    ),
]
OwnWorkload = Annotated[str | None, option(help="The RUN's own, FILE.py:NAME, which may then run.")]
OwnMethod = Annotated[str | None, option(help="As --workload, of the RUN's own method.")]
OwnCode = Annotated[
    list[str] | None, option("-c", metavar="KEY=VALUE", help="RUN's own source or callbacks.")
]
Choice = Annotated[
    list[str] | None,
    option("-c", metavar="KEY=VALUE", help="A setting, as --NAME VALUE; repeatable."),
]
RayAddress = Annotated[
    str | None,
    option(
        help="Ray cluster to join, auto or HOST:PORT; default RAY_ADDRESS, else a Ray of its own."
    ),
]
Label = Annotated[
    list[str] | None,
    option(
        metavar="METHOD=NAME",
        help="What tables and figures call a method, as 'lsg=LSG, rank 4'; repeatable.",
    ),
]
Opens = Annotated[bool, option("--open", help="Open a page in the browser that follows the run.")]

METHOD_HELP = {
    "rank": "Rank r of the carriers.",
    "sparsity": "Share p of units or coordinates that is frozen.",
    "clip_norm": "Clip norm C of an example's gradient.",
    "learning_rate": "Learning rate of the server; auto: by the rule; x0.5: half of the "
    "one without it.",
    "optimizer": "Server optimizer: sgd, adam, Yogi or another class of torch.optim.",
    "momentum": "Momentum of the server's SGD.",
}
"""Settings of methods and server in ``--help``, with their declared sentences, which would need
torch; a test compares them.
"""
HELP_SETTINGS = frozenset(
    {
        "method",
        "preset",
        "model",
        "seed",
        "data_dir",
        "pretrained",
        "augment",
        "epsilon",
        "noise_multiplier",
        "delta",
        "unit",
        "trust",
        "reproducible",
        "rounds",
        "epochs",
        "clients",
        "clients_per_round",
        "local_steps",
        "sample_rate",
        "batch_size",
        "partition",
        "alpha",
        "dropout",
        "deadline",
        "codec",
        "downlink",
        "record_updates",
        "callbacks",
        "engine",
        "device",
        "workers",
    }
)
"""Settings of a run in ``--help``; ``--help-all`` shows all."""
BOOLEAN_WORDS = ("true", "false", "yes", "no")
"""Values of a setting that is a bool."""
RECIPES = Path(__file__).parents[2] / "strategies" / "recipes"
NUMBER_LISTS = ("--epsilons", "--ranks", "--sparsities", "--sigmas")
"""Options with a list of numbers, which may be several words."""
METHOD_LISTS = ("--methods", "--compare")
"""Options with a list of methods, which may be several words."""


class WithSettings(typer.core.TyperCommand):
    """A command with ``-c NAME=VALUE``, and with each setting as an option."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The declared parameters, and ``--help-all``."""

        def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
            if value and not ctx.resilient_parsing:
                ctx.meta["help_all"] = True
                click.echo(ctx.get_help())
                ctx.exit()

        more = click.Option(
            ["--help-all"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=show,
            help="Show this message with every setting.",
        )
        return [*super().get_params(ctx), more]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments after settings are written as ``-c name=value``."""
        known = {
            name: param
            for param in self.get_params(ctx)
            for name in param.opts
            if name.startswith("-")
        }
        return super().parse_args(
            ctx, arguments_in_full(args, known, resilient=ctx.resilient_parsing)
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help of the declared options, then that of settings by group."""
        declared = {param.name for param in self.params}
        super().format_options(ctx, formatter)
        groups = sentences_by_group(whole=ctx.meta.get("help_all", False))
        for group, names in groups.items():
            rows = [(option_of(name), text) for name, text in names.items() if name not in declared]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completions of the declared options, then those of settings."""
        items = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            present = {item.value for item in items}
            names = [option_of(name) for name in [*RUN, *sorted(KNOWN), *METHOD_HELP]]
            items += [
                CompletionItem(name)
                for name in dict.fromkeys(names)
                if name.startswith(incomplete) and name not in present
            ]
        return items


def option_of(name: str) -> str:
    """The option of a setting."""
    return f"--{name.replace('_', '-')}"


def arguments_in_full(
    args: Sequence[str], known: Mapping[str, Any], *, resilient: bool
) -> list[str]:
    """Arguments with ``-c name=value`` for each option that is a setting, and lists with commas.

    known: declared options.
    resilient: whether an unknown option is kept, as in a completion.

    An option that is given twice has its last value.
    """
    rest = list(args)
    kept: list[str] = []
    settings: dict[str, str] = {}
    while rest and rest[0] != "--":
        arg = rest.pop(0)
        name, sign, value = arg.partition("=")
        if name in NUMBER_LISTS + METHOD_LISTS and name in known:
            belongs = _is_number if name in NUMBER_LISTS else _is_method
            values = [value] if sign else rest[:1]
            if not sign:
                del rest[:1]
            while rest and belongs(rest[0]):
                values.append(rest.pop(0))
            kept += [name, ",".join(values)] if values else [name]
        elif not arg.startswith("--") or name in known or name == "--help" or resilient:
            kept.append(arg)
            if name in known and not sign and not getattr(known[name], "is_flag", False) and rest:
                kept.append(rest.pop(0))
        else:
            key = setting_of(name, args, known)  # before the value: an unknown option is an error
            settings[key] = value if sign else take_value(name, rest)
    written: list[str] = []
    for name, value in settings.items():
        written += ["-c", f"{name}={value}"]
    return [*written, *kept, *rest]


def setting_of(option: str, args: Sequence[str], known: Mapping[str, Any]) -> str:
    """The setting of an option. Raises a usage error, with the nearest name, for no setting."""
    name = option[2:].replace("-", "_")
    has_own_code = any(".py:" in arg for arg in args)  # a user's own method may declare any name
    if name not in RUN and name not in KNOWN and name not in all_settings() and not has_own_code:
        raise click.NoSuchOption(
            option, message=f"No such option: {option}{meant_option(option, known)}"
        )
    return name


def take_value(option: str, rest: list[str]) -> str:
    """The value of an option, which is taken out of the rest of the words; a bool needs none."""
    name = option[2:].replace("-", "_")
    if (
        name in RUN
        and RUN[name].kind is bool
        and (not rest or rest[0].lower() not in BOOLEAN_WORDS)
    ):
        return "true"
    if rest and (not rest[0].startswith("-") or _is_number(rest[0])):
        return rest.pop(0)
    if name not in RUN:
        declared = all_settings().get(name)
        if declared is not None and declared.kind is bool:
            return "true"
    raise click.BadOptionUsage(option, f"{option} needs a value")


def _is_number(text: str) -> bool:
    """Whether a word is a number, or numbers with commas."""
    try:
        for word in text.split(","):
            float(word)
    except ValueError:
        return False
    return True


def _is_method(text: str) -> bool:
    """Whether a word after a list of methods is one more, and no workload."""
    return (RECIPES / f"{text.lower().replace('-', '_')}.py").is_file() or "," in text


def sentences_by_group(*, whole: bool) -> dict[str, dict[str, str]]:
    """Help of settings by group and name; ``whole``: of all settings."""
    if whole:
        from fedlsg.simulations.settings.show_settings import by_group

        settings = all_settings()
        return {
            group: {name: _sentence(settings[name]) for name in names}
            for group, names in by_group(settings).items()
        }
    groups = {
        group: {name: _sentence(RUN[name]) for name in names if name in HELP_SETTINGS}
        for group, names in GROUPS_OF_RUN.items()
    }
    return {**groups, "Methods and server": dict(METHOD_HELP)}


def _sentence(declared: Declared) -> str:
    """The help of a setting: its meaning, its range or choices, and its default."""
    meaning = declared.setting.meaning.removesuffix(".")
    parts = [meaning]
    if not all(str(choice) in meaning for choice in declared.choices):
        parts.append(declared.range)
    if declared.kind is not bool and isinstance(declared.default, str | int | float):
        parts.append(f"default {declared.default}")
    return "; ".join(parts) + "."


COMMAND_WORDS = {
    **dict.fromkeys(("train", "fit", "start", "simulate"), "run"),
    **dict.fromkeys(("estimate", "dry-run", "check"), "plan"),
    **dict.fromkeys(("show", "plot", "evaluate", "eval", "view"), "report RUN"),
    **dict.fromkeys(("continue", "restart"), "resume RUN"),
    **dict.fromkeys(("search", "sweep", "grid"), "compare"),
    **dict.fromkeys(("save", "load", "predict"), "export RUN"),
    **dict.fromkeys(("membership", "mia"), "attack --membership RUN"),
    **dict.fromkeys(("invert", "reconstruct", "leak"), "attack RUN"),
    "help": "--help",
    "noise": "calibrate",
}
"""Words of other programs, by which people may mean a command."""
LIBRARY_WORDS = {
    "peft": "fedlsg trains the adapters of a peft model as they are, by any method: give it as "
    "your model in Python, see docs/peft.md",
}
"""Words that are not methods, and what to do instead."""
MIN_SIMILARITY = 0.75
"""Similarity (``difflib``) of a word and its replacement at least."""
QUOTED_NAME = re.compile(r"'(\w+)'")
UNKNOWN_WORD = re.compile(
    r"unknown (?:workload|method|setting|parameter|preset) '([^']+)'|No such command '([^']+)'"
)
"""Errors about an unknown word; the first group is a name, the second a command."""


def meant_option(option: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown option: the nearest option, or nothing."""
    word, settings = option[2:], all_settings()
    aliases = {
        alias: name for name, declared in settings.items() for alias in declared.setting.aliases
    }
    if (name := aliases.get(word.replace("-", "_").lower())) is not None:
        return f"; did you mean {option_of(name)}?"
    names = {*settings, *(name.strip("-").replace("-", "_") for name in known)}
    if hint := other_name(word, names):
        return hint
    if word + "s" in settings:  # --epoch is --epochs, and not the value epoch of redraw
        return f"; did you mean --{word}s?"
    if (written := ways_to_write(settings).get(MEANINGS.get(plain(word), plain(word)))) is not None:
        return f"; did you mean {written}?"
    options = [
        *(name[2:] for name in known if name.startswith("--")),
        *(name.replace("_", "-") for name in settings),
    ]
    near = nearest(word, options)
    return f"; did you mean --{near}?" if near else ""


def other_name(option: str, known: Collection[str]) -> str:
    """The end of an error about an option that another library has; empty for any other."""
    return QUOTED_NAME.sub(lambda match: option_of(match[1]), in_our_words(option, known))


def option_hint(error: click.ClickException) -> str:
    """The end of an error about an option that a command without settings does not have."""
    if isinstance(error, click.BadParameter) and error.param and error.param.name == "seeds":
        return ": it is how many, from 0 on, as --seeds 3 for the seeds 0, 1 and 2"
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    command = error.ctx.command
    if isinstance(command, WithSettings):
        return ""
    return other_name(error.option_name, {str(param.name) for param in command.params})


def elsewhere(text: str) -> str:
    """The end of an error about an unknown word that is a word of another kind: how to write it."""
    match = UNKNOWN_WORD.search(text)
    if match and (command := COMMAND_WORDS.get(match[2])) is not None:
        return f"; did you mean fedlsg {command}?"
    word = next(filter(None, match.groups()), "") if match else ""
    if word in LIBRARY_WORDS:
        return f"; {LIBRARY_WORDS[word]}"
    if not word or in_our_words(word, ()) or " is called '" in text:
        return ""
    if _is_number(word):  # the second of --seed 1 2, read as the workload
        return f"; an option takes one value: what does {word} belong to?"
    places, meant = ways_to_write(all_settings()), plain(word)
    if near := re.search("did you mean '([^']+)'", text, re.IGNORECASE):
        return f"; or {places[meant]}?" if meant in places and plain(near[1]) != meant else ""
    meant = meant if meant in places else nearest(word, places) or ""
    if SequenceMatcher(None, plain(word), meant).ratio() < MIN_SIMILARITY:
        return ""
    return f"; or {places[meant]}?" if meant in places else ""


def ways_to_write(settings: Mapping[str, Declared]) -> dict[str, str]:
    """By a word without case and signs, how to write it on the command line.

    A setting comes before a workload, codec, method, choice or scheme of the same name.
    """
    from fedlsg import strategies
    from fedlsg.payload import all_codecs
    from fedlsg.simulations import workloads

    ways = {plain(name): f"fedlsg run {name}" for name in workloads.names()}
    ways |= {plain(name): f"--codec {name}" for name in all_codecs()}
    ways |= {plain(name): f"--method {name}" for name in strategies.names()}
    for name, declared in settings.items():
        for choice in declared.choices:
            ways.setdefault(plain(str(choice)), f"--{name.replace('_', '-')} {choice}")
    for scheme in SCHEMES:
        ways.setdefault(scheme, f"--partition {scheme}")
    return ways | {plain(name): f"--{name.replace('_', '-')}" for name in settings}
