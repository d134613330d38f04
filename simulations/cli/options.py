"""Options of the command line: how one is written; and every setting as one: ``--learning-rate
0.5``.

``--learning-rate 0.5`` means ``-c learning_rate=0.5``. These options are not declared one by one:
an option that the command has not is a setting, or an error that says which name was meant:
options, settings, values, methods, codecs and workloads, all together. Settings of methods are
known once torch is imported, which is not done for names that need no look.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
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
    """A live line on a terminal while a command imports what it needs, which takes seconds; else
    nothing.
    """
    return console.status("starting")


def option(*names: str, help: str, metavar: str | None = None) -> Any:
    """An option whose own help says its default, in words that also cover what a workload
    decides.
    """
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


def setting(name: str, *names: str) -> Any:
    """The option of a setting of every run: its declaration's sentence, choices and default."""
    return option(*names, help=_sentence(RUN[name]))


def device_in(given: dict[str, Any]) -> Device:
    """Take the setting ``device`` out of given ones: a command that looks at a run has a device of
    its own.

    Raises ValueError for anything that is not a device.
    """
    device: Device = RUN["device"].parse(given.pop("device", RUN["device"].default))
    return device


def let_run(
    runs: Sequence[str], given: dict[str, Any], trust_code: bool, *, needs: Collection[str] = READS
) -> dict[str, Any]:
    """Let the code that run directories name run, as far as ``allow_code`` does; returns the other
    given settings.
    """
    used = {
        name
        for run in runs
        for name in allow_code(
            Path(run).expanduser(),
            given,
            trust_code=trust_code,
            needs=needs,
            say=lambda line: console.print(
                line, style="yellow", markup=False, highlight=False, soft_wrap=True
            ),
        )
    }
    return {name: value for name, value in given.items() if name not in used}


def only_code(given: dict[str, Any]) -> dict[str, Any]:
    """Given settings, all of which name code. Raises ValueError for others: a run has its
    settings.
    """
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

USUAL = {
    "rank": "Rank r of the carriers.",
    "sparsity": "Share p of units or coordinates that is frozen.",
    "clip_norm": "Clip norm C of an example's gradient.",
    "learning_rate": "Learning rate of the server; auto: by the rule; x0.5: half of the "
    "one without it.",
    "optimizer": "Server optimizer: sgd, adam, Yogi or another class of torch.optim.",
    "momentum": "Momentum of the server's SGD.",
}
"""Settings of methods and server that ``--help`` shows, with their declared sentences; a test
compares them.
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
"""Settings of a run that ``--help`` shows; ``--help-all`` shows all."""
WORDS = ("true", "false", "yes", "no")
RECIPES = Path(__file__).parents[2] / "strategies" / "recipes"
NUMBERS = ("--epsilons", "--ranks", "--sparsities", "--sigmas")
METHODS = ("--methods", "--compare")


class WithSettings(typer.core.TyperCommand):
    """A command with ``-c NAME=VALUE``, and with each setting as an option."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
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
        known = {
            name: param
            for param in self.get_params(ctx)
            for name in param.opts
            if name.startswith("-")
        }
        return super().parse_args(ctx, _written(args, known, resilient=ctx.resilient_parsing))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        whole = ctx.meta.get("help_all", False)
        taken = {param.name for param in self.params}
        super().format_options(ctx, formatter)
        for group, names in _groups(whole=whole).items():
            rows = [(option_of(name), text) for name, text in names.items() if name not in taken]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        items = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            there = {item.value for item in items}
            names = [option_of(name) for name in [*RUN, *sorted(KNOWN), *USUAL]]
            items += [
                CompletionItem(name)
                for name in dict.fromkeys(names)
                if name.startswith(incomplete) and name not in there
            ]
        return items


def option_of(name: str) -> str:
    """The option of a setting."""
    return f"--{name.replace('_', '-')}"


def _written(args: Sequence[str], known: Mapping[str, Any], *, resilient: bool) -> list[str]:
    """Arguments with ``-c name=value`` for each option that is a setting, and lists with commas.

    Of an option that is given twice the last one counts, as of any other option.
    """
    rest, kept, said = list(args), [], dict[str, str]()
    while rest and rest[0] != "--":
        arg = rest.pop(0)
        name, sign, value = arg.partition("=")
        if name in NUMBERS + METHODS and name in known:
            belongs = _is_number if name in NUMBERS else _is_method
            values = [value] if sign else rest[:1]
            del rest[: 0 if sign else 1]
            while rest and belongs(rest[0]):
                values.append(rest.pop(0))
            kept += [name, ",".join(values)] if values else [name]
        elif not arg.startswith("--") or name in known or name == "--help" or resilient:
            kept.append(arg)
            if name in known and not sign and not getattr(known[name], "is_flag", False) and rest:
                kept.append(rest.pop(0))
        else:
            setting = _setting(name, args, known)  # first: an unknown one says what was meant
            said[setting] = value if sign else _value(name, rest)
    return [
        *(word for name, value in said.items() for word in ("-c", f"{name}={value}")),
        *kept,
        *rest,
    ]


def _setting(option: str, args: Sequence[str], known: Mapping[str, Any]) -> str:
    """The setting of an option. Raises a usage error for none, which says what was meant."""
    name = option[2:].replace("-", "_")
    own = any(".py:" in arg for arg in args)  # a method of the user's own may declare any
    if name not in RUN and name not in KNOWN and name not in all_settings() and not own:
        raise click.NoSuchOption(
            option, message=f"No such option: {option}{meant_option(option, known)}"
        )
    return name


def _value(option: str, rest: list[str]) -> str:
    name = option[2:].replace("-", "_")
    if name in RUN and RUN[name].kind is bool and (not rest or rest[0].lower() not in WORDS):
        return "true"
    if rest and (not rest[0].startswith("-") or _is_number(rest[0])):
        return rest.pop(0)
    if name not in RUN and name in (known := all_settings()) and known[name].kind is bool:
        return "true"
    raise click.BadOptionUsage(option, f"{option} needs a value")


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        return [float(word) for word in text.split(",")] != []
    return False


def _is_method(text: str) -> bool:
    """Whether a word after a list of methods is one more, and no workload."""
    return (RECIPES / f"{text.lower().replace('-', '_')}.py").is_file() or "," in text


def _groups(*, whole: bool) -> dict[str, dict[str, str]]:
    """Sentences of settings by name, in groups."""
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
    return {**groups, "Methods and server": dict(USUAL)}


def _sentence(one: Declared) -> str:
    words = [one.setting.meaning.removesuffix(".")]
    words += [] if all(str(choice) in words[0] for choice in one.choices) else [one.range]
    said = (
        one.kind is not bool
        and one.default is not None
        and isinstance(one.default, str | int | float)
    )
    words += [f"default {one.default}"] if said else []
    return "; ".join(words) + "."


COMMANDS = {
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
"""Words that people use for a command, by the command that they mean."""
LIBRARIES = {
    "peft": "fedlsg trains the adapters of a peft model as they are, by any method: give it as "
    "your model in Python, see docs/peft.md",
}
"""Words that are not methods, and what to do instead."""
ALIKE = 0.75
"""How alike a word and the one that it may stand for are at least."""
QUOTED = re.compile(r"'(\w+)'")
UNKNOWN = re.compile(
    r"unknown (?:workload|method|setting|parameter|preset) '([^']+)'|No such command '([^']+)'"
)


def meant_option(option: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown option."""
    word, settings = option[2:], all_settings()
    aliases = {alias: name for name, one in settings.items() for alias in one.setting.aliases}
    if (name := aliases.get(word.replace("-", "_").lower())) is not None:
        return f"; did you mean {option_of(name)}?"
    if said := other_name(
        word, {*settings, *(name.strip("-").replace("-", "_") for name in known)}
    ):
        return said
    if word + "s" in settings:  # epoch: before redraw=epoch
        return f"; did you mean --{word}s?"
    if (written := _places(settings).get(MEANINGS.get(plain(word), plain(word)))) is not None:
        return f"; did you mean {written}?"
    options = [
        *(name[2:] for name in known if name.startswith("--")),
        *(name.replace("_", "-") for name in settings),
    ]
    near = nearest(word, options)
    return f"; did you mean --{near}?" if near else ""


def other_name(option: str, known: Collection[str]) -> str:
    """The end of an error about an option that another library has; empty for any other."""
    said = in_our_words(option, known)
    return QUOTED.sub(lambda name: option_of(name[1]), said)


def option_hint(error: click.ClickException) -> str:
    """The end of an error about an option that a command without settings has not."""
    if isinstance(error, click.BadParameter) and error.param and error.param.name == "seeds":
        return ": it is how many, from 0 on, as --seeds 3 for the seeds 0, 1 and 2"
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    command = error.ctx.command
    if isinstance(command, WithSettings):
        return ""
    return other_name(error.option_name, {str(param.name) for param in command.params})


def elsewhere(text: str) -> str:
    """What an error about an unknown word may add: that the word is one of another kind, and how to
    write it.
    """
    match = UNKNOWN.search(text)
    if match and (command := COMMANDS.get(match[2])) is not None:
        return f"; did you mean fedlsg {command}?"
    word = next(filter(None, match.groups()), "") if match else ""
    if word in LIBRARIES:
        return f"; {LIBRARIES[word]}"
    if not word or in_our_words(word, ()) or " is called '" in text:
        return ""
    if _is_number(word):  # the second of --seed 1 2, read as the workload
        return f"; an option takes one value: what does {word} belong to?"
    places, meant = _places(all_settings()), plain(word)
    if near := re.search("did you mean '([^']+)'", text, re.IGNORECASE):
        return f"; or {places[meant]}?" if meant in places and plain(near[1]) != meant else ""
    meant = meant if meant in places else nearest(word, places) or ""
    if SequenceMatcher(None, plain(word), meant).ratio() < ALIKE:
        return ""
    return f"; or {places[meant]}?" if meant in places else ""


def _places(settings: Mapping[str, Declared]) -> dict[str, str]:
    """How to write a word, by the word: the first kind that has it."""
    from fedlsg import strategies
    from fedlsg.payload import all_codecs
    from fedlsg.simulations import workloads

    ways = {plain(name): f"fedlsg run {name}" for name in workloads.names()}
    ways |= {plain(name): f"--codec {name}" for name in all_codecs()}
    ways |= {plain(name): f"--method {name}" for name in strategies.names()}
    for name, one in settings.items():
        for choice in one.choices:
            ways.setdefault(plain(str(choice)), f"--{name.replace('_', '-')} {choice}")
    for scheme in SCHEMES:
        ways.setdefault(scheme, f"--partition {scheme}")
    return ways | {plain(name): f"--{name.replace('_', '-')}" for name in settings}
