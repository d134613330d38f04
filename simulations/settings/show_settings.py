"""``fedlsg settings`` and ``fedlsg list``: tables of all settings and names."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from fedlsg import strategies
from fedlsg.config import REQUIRED, Declared, unknown
from fedlsg.config.partitions import SCHEMES
from fedlsg.config.rules import Rule, spell
from fedlsg.payload import all_codecs
from fedlsg.payload.codecs import summaries
from fedlsg.simulations import workloads
from fedlsg.simulations.settings.automatic import RULED
from fedlsg.simulations.settings.resolve import FALLBACK
from fedlsg.simulations.settings.rule_checker import FACTS, all_rules, codec_lists
from fedlsg.simulations.settings.settings import (
    GROUPS_OF_RUN,
    all_settings,
    codec_settings,
    in_order,
    mechanism_settings,
    method_settings,
    server_settings,
)


def settings_command(name: str | None, console: Console) -> None:
    """``fedlsg settings``. Raises ValueError for an unknown name, with the nearest known one."""
    settings = all_settings()
    if name is None:
        console.print(overview(settings), highlight=False)
    else:
        key = name.replace("-", "_")
        if key not in settings:
            raise unknown("setting", name, settings)
        console.print(whole(settings[key]), highlight=False)


def overview(found: Mapping[str, Declared]) -> Group:
    """Every setting in a line: name, default, sentence; by groups."""
    lines: list[Table | Text] = []
    for group, names in by_group(found).items():
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column(min_width=24, no_wrap=True)
        table.add_column(width=10, overflow="fold")
        table.add_column()
        for name in names:
            table.add_row(
                Text(name), Text(default_of(found[name])), Text(found[name].setting.meaning)
            )
        lines += [Text(f"\n{group}" if lines else group, style="bold"), table]
    return Group(
        *lines,
        Text("\nfedlsg settings NAME shows one whole; --NAME VALUE sets it, or -c NAME=VALUE."),
    )


def whole(one: Declared) -> Table:
    """A setting in full."""
    used = used_by(one.name)
    rows = {
        "setting": one.name,
        "meaning": one.setting.meaning,
        "unit": one.setting.unit,
        "range": range_of(one),
        "default": by_value(used.defaults) or _by_rule(one) or default_of(one),
        "used by": used.by,
        **{f"  {name}": line for name, line in values_of(one.name).items()},
        "presets": by_value(used.workloads),
        "goes with": rule_lines(one.name),
    }
    return name_table({title: text for title, text in rows.items() if text})


def values_of(setting: str) -> Mapping[str, str]:
    """A sentence for each value of a setting that names one of several things."""
    if setting == "codec":
        return summaries()
    return {name: s.words for name, s in SCHEMES.items()} if setting == "partition" else {}


def rule_lines(name: str) -> str:
    """The rules of a setting, a line each."""
    return "\n".join(_words(rule) for rule in all_rules() if rule.name == name)


def _words(rule: Rule) -> str:
    wanted, without = sides(rule)
    verb = "has an effect with" if rule.idle else "needs" if wanted else "does not go with"
    return f"{rule.of.replace('|', ' or ')} {verb} {wanted or without}".replace("`", "")


def sides(rule: Rule) -> tuple[str, str]:
    """What a rule needs, and what it does not go with."""
    if rule.needs.startswith("not "):
        return "", plain(FACTS.get(rule.needs[4:], f"`{rule.needs[4:]}`"))
    return plain(spell(rule.needs, FACTS)), ""


def plain(text: str) -> str:
    """A text without the parts that only a run can fill."""
    for name, value in codec_lists().items():
        text = text.replace(f"{{{name}}}", str(value))
    text = re.sub(r" \([^()]*\{[^()]*\)|=\{\w+\}", "", text)
    return re.sub(r"\{(\w+)(!r)?\}", r"\1", text)


def range_of(one: Declared) -> str:
    """What a setting accepts, for a reader."""
    codecs = {codec.name: codec.goes_down for codec in all_codecs().values()}
    names = {
        "codec": list(codecs),
        "downlink_codec": [name for name, down in codecs.items() if down],
    }
    return ", ".join(names[one.name]) if one.name in names else one.range


def by_value(found: Mapping[str, object]) -> str:
    """Each value once, with the names that have it."""
    names_by_value: dict[str, list[str]] = {}
    for name, value in found.items():
        names_by_value.setdefault(text_of(value), []).append(name)
    return "; ".join(f"{value} ({', '.join(names)})" for value, names in names_by_value.items())


def default_of(one: Declared) -> str:
    """The default of a setting without a workload's preset."""
    value = _fallback(one)
    if one.name in RULED:
        return "by rule"
    if len(set(map(str, used_by(one.name).defaults.values()))) > 1:
        return "by method"
    return text_of(value)


def _fallback(one: Declared) -> Any:
    return FALLBACK.get(one.name, None if one.default is REQUIRED else one.default)


def _by_rule(one: Declared) -> str:
    """The default of a setting that the rule gives; empty for another one."""
    if one.name not in RULED:
        return ""
    otherwise = text_of(_fallback(one))
    last = "" if otherwise == "-" else f"; {otherwise} where a given setting turns the rule off"
    return f"a workload's preset, else the rule of fedlsg docs choosing{last}"


def text_of(value: object) -> str:
    """A value as a user writes it; "-" for none."""
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def by_group(found: Mapping[str, Declared]) -> dict[str, list[str]]:
    """Names of settings by group, in the order of config.toml."""
    groups: dict[str, list[str]] = {}
    own = _own_groups()
    for name in in_order(found):
        groups.setdefault(own.get(name) or _group_of_run(name), []).append(name)
    return groups


LISTS: Mapping[str, tuple[Callable[[], Iterable[str]], Callable[[str], str], str]] = {
    "methods": (
        strategies.names,
        strategies.summary,
        "fedlsg docs methods says more; fedlsg run --method NAME runs one.",
    ),
    "workloads": (
        workloads.names,
        lambda name: _summary(name),
        "fedlsg run NAME trains on one; FEDLSG_DATA names a data folder.",
    ),
    "codecs": (
        all_codecs,
        lambda name: summaries()[name],
        "fedlsg run --codec NAME sends values so.",
    ),
}
"""Names, the sentence of each, and what to do with them."""


def list_command(what: str, console: Console) -> None:
    """``fedlsg list`` of what is in ``LISTS``."""
    names, sentence, after = LISTS[what]
    console.print(name_table({name: sentence(name) for name in names()}), highlight=False)
    console.print(after, highlight=False)


def _summary(workload: str) -> str:
    try:
        return workloads.summary(workload)
    except (ValueError, OSError, ImportError) as error:  # of an installed package
        return f"cannot be loaded: {error}"


def name_table(rows: Mapping[str, str]) -> Table:
    """Names and a sentence each."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in rows.items():
        table.add_row(Text(name), Text(text))
    return table


@dataclass(frozen=True, kw_only=True)
class Used:
    """The users of a setting.

    by: who has the setting, in words.
    defaults: by method.
    workloads: values of their presets, in words.
    """

    by: str
    defaults: Mapping[str, Any]
    workloads: Mapping[str, str]


def used_by(name: str) -> Used:
    """The users of a setting."""
    methods = strategies.takers_of(name)
    defaults = {method: strategies.declared_by(method)[name].default for method in methods}
    codecs = [f"codec {codec.name}" for codec in all_codecs().values() if name in codec.settings]
    every = {"mechanism": mechanism_settings(), "server": server_settings()}
    by = next(
        (f"{part} of every method" for part, found in every.items() if name in found), "every run"
    )
    return Used(by=", ".join(methods or codecs) or by, defaults=defaults, workloads=_presets(name))


def group_of(name: str) -> str:
    """The group that a setting is listed in."""
    return _own_groups().get(name) or _group_of_run(name)


def _own_groups() -> dict[str, str]:
    """The groups of settings that are no run's own."""
    return {
        **dict.fromkeys(server_settings(), "Server"),
        **dict.fromkeys(mechanism_settings(), "Privacy"),
        **dict.fromkeys(method_settings(), "Methods"),
        **dict.fromkeys(codec_settings(), "Messages and records"),
    }


def _group_of_run(name: str) -> str:
    return next(group for group, names in GROUPS_OF_RUN.items() if name in names)


@cache  # what is installed stays while a process runs
def _presets(name: str) -> Mapping[str, str]:
    values_by_workload: dict[str, str] = {}
    for workload in workloads.names():
        try:
            common, by_method = workloads.presets(workload)
        # of an installed package; the list of workloads says why
        except (ValueError, OSError, ImportError):
            continue
        values = [str(common[name])] if name in common else []
        values += [f"{row[name]} for {method}" for method, row in by_method.items() if name in row]
        if values:
            values_by_workload[workload] = ", ".join(values)
    return values_by_workload
