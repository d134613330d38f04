"""``fedlsg settings``, ``methods`` and ``workloads``: what there is, from the declarations, as tables and as a page."""

from collections.abc import Mapping

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

import strategies
from fedlsg.payload import all_codecs
from fedlsg.setting import REQUIRED, Declared, unknown
from simulations import workloads
from simulations.settings.declared import all_settings, in_order
from simulations.settings.resolve import FALLBACK
from simulations.settings.used import group_of, used_by

HEAD = """# Settings

Made by `fedlsg settings --markdown`; do not edit. `-c name=value` sets one, `fedlsg settings NAME` shows it. Under
"range", x is the value. A default of `-` means that the setting is not used unless it is given, or that it follows from
others. A workload's own value goes before the default; `fedlsg presets` has those of the papers."""


def settings_command(name: str | None, markdown: bool, console: Console) -> None:
    """``fedlsg settings``. Raises ValueError for an unknown name, with the nearest known one."""
    found = all_settings()
    if markdown:
        print(as_markdown(), end="")
    elif name is None:
        console.print(overview(found), highlight=False)
    else:
        key = name.replace("-", "_")
        if key not in found:
            raise unknown("setting", name, found)
        console.print(whole(found[key]), highlight=False)


def overview(found: Mapping[str, Declared]) -> Group:
    """Every setting in a line: name, default, sentence; by groups."""
    lines: list[Table | Text] = []
    for group, names in by_group(found).items():
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column(min_width=24, no_wrap=True)
        table.add_column(width=10, overflow="fold")
        table.add_column()
        for name in names:
            table.add_row(Text(name), Text(default_of(found[name])), Text(found[name].setting.meaning))
        lines += [Text(f"\n{group}" if lines else group, style="bold"), table]
    return Group(*lines, Text("\nfedlsg settings NAME shows one whole; -c NAME=VALUE sets it."))


def whole(one: Declared) -> Table:
    """All that is known of a setting."""
    used = used_by(one.name)
    rows = {
        "setting": one.name,
        "meaning": one.setting.meaning,
        "unit": one.setting.unit,
        "range": range_of(one),
        "default": by_value(used.defaults) or default_of(one),
        "used by": used.by,
        "presets": by_value(used.workloads),
    }
    return name_table({title: text for title, text in rows.items() if text})


def range_of(one: Declared) -> str:
    """What a setting accepts, for a reader."""
    codecs = {codec.name: codec.goes_down for codec in all_codecs().values()}
    names = {"codec": list(codecs), "downlink_codec": [name for name, down in codecs.items() if down]}
    return ", ".join(names[one.name]) if one.name in names else one.range


def by_value(found: Mapping[str, object]) -> str:
    """Who has which value, each value once."""
    names: dict[str, list[str]] = {}
    for name, value in found.items():
        names.setdefault("-" if value is None else str(value), []).append(name)
    return "; ".join(f"{value} ({', '.join(those)})" for value, those in names.items())


def default_of(one: Declared) -> str:
    """The default of a setting where no workload says otherwise."""
    value = FALLBACK.get(one.name, None if one.default is REQUIRED else one.default)
    if len(set(map(str, used_by(one.name).defaults.values()))) > 1:
        return "by method"
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def by_group(found: Mapping[str, Declared]) -> dict[str, list[str]]:
    """Names of settings by group, in the order of config.toml."""
    groups: dict[str, list[str]] = {}
    for name in in_order(found):
        groups.setdefault(group_of(name), []).append(name)
    return groups


def as_markdown() -> str:
    """The page docs/settings.md."""
    found = all_settings()
    lines = [HEAD]
    for group, names in by_group(found).items():
        lines += [
            "",
            f"## {group}",
            "",
            "| name | meaning | unit | range | default | presets of workloads | methods |",
            "|" + "---|" * 7,
        ]
        for name in names:
            one, used = found[name], used_by(name)
            methods = by_value(used.defaults) or ("all" if used.by != "every run" else "")
            presets = by_value(used.workloads)
            cells = (
                f"`{name}`",
                one.setting.meaning,
                one.setting.unit,
                range_of(one),
                default_of(one),
                presets,
                methods,
            )
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def methods_command(console: Console) -> None:
    """``fedlsg methods``."""
    console.print(name_table({name: strategies.summary(name) for name in strategies.names()}), highlight=False)
    console.print("docs/methods.md says more; fedlsg run --method NAME runs one.", highlight=False)


def workloads_command(console: Console) -> None:
    """``fedlsg workloads``."""
    console.print(name_table({name: workloads.summary(name) for name in workloads.names()}), highlight=False)
    console.print("fedlsg run NAME trains on one; FEDLSG_DATA names a folder of data.", highlight=False)


def name_table(rows: Mapping[str, str]) -> Table:
    """Names and a sentence each."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in rows.items():
        table.add_row(Text(name), Text(text))
    return table
