"""``python -m docs._sphinx.settings``: docs/settings.md and docs/presets.md, from the declarations
and the presets.

Of what goes together, the page has every rule of the one checker, and matrices that the checker
itself fills. Tests in ``tests/simulations/settings`` compare the pages with what this makes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from fedlsg import strategies
from fedlsg.config.mechanisms import DP
from fedlsg.config.rules import Facts, Rule, example, spell
from fedlsg.config.units import UNITS
from fedlsg.payload import DEFAULT_CODEC
from fedlsg.simulations.settings.any_run import Settings
from fedlsg.simulations.settings.published import Published, presets
from fedlsg.simulations.settings.published.show_presets import COLUMNS, numbered, row
from fedlsg.simulations.settings.rule_checker import (
    FACTS,
    SHARE,
    all_rules,
    method_facts,
    unit_facts,
)
from fedlsg.simulations.settings.settings import all_settings
from fedlsg.simulations.settings.show_settings import (
    by_group,
    by_value,
    default_of,
    plain,
    range_of,
    sides,
    used_by,
)

PAGES = Path(__file__).resolve().parents[1]
MODES = (
    "trust=secure",
    "trust=aggregate",
    "trust=server",
    "unit=client",
    "sampling=shuffle",
    "personal",
    "downlink=sparse",
    "indices=explicit",
    "over_selection",
    "deadline",
    "evaluate_clients",
    "record_updates",
    "deployed",
)
OF_METHODS = (
    "trust=secure",
    "trust=aggregate",
    "trust=server",
    "unit=client",
    "personal",
    "over_selection",
)
FREE: Mapping[str, Sequence[str]] = {
    "trust": ("client", "secure", "aggregate", "server"),
    "unit": tuple(UNITS),
    "codec": (DEFAULT_CODEC,),
    "sampling": ("poisson", "shuffle"),
    "downlink": ("full", "sparse"),
    "indices": ("derived", "explicit"),
}
"""Settings whose other values are tried before a pair is called impossible."""
PRIVATE = {
    "mechanism": DP.name,
    "private": True,
    "noise": True,
    "clip": "joint",
    "grid_from_noise": False,
}

TOGETHER = """## What goes together

Every setting declares what it needs; one checker reads that before data are loaded, with the gaps filled, and with the
method built. A name alone stands for the setting with any value that is not off. A setting that only has no effect is
refused where its user gave it; a preset may have it, and a comparison in which some cell uses it."""
NO_EFFECT = "Settings that have no effect otherwise:"
MATRIX = "Pairs of options, each with the rest chosen as it needs; `x`: they exclude each other."
METHODS = "Methods and options; `x`: the method does not go with it."
HEAD = """# Settings

Made by `python -m docs._sphinx.settings`; do not edit. `--name value` or `-c name=value` sets one,
`fedlsg settings NAME` shows it. Under "range", x is the value. A default of `-` means that the setting is not used
unless it is given, or that it follows from others. A setting that is in no list of methods is taken by every run. The
value in a workload's preset goes before the default; `fedlsg list presets` has those of the papers. `by rule`: where
there is no such preset, [the rule](choosing.md) gives it; `fedlsg settings NAME` has the value where a given setting
turns the rule off."""


def settings_page() -> str:
    """The page docs/settings.md."""
    found = all_settings()
    lines = [HEAD]
    for group, names in by_group(found).items():
        lines += [
            "",
            f"## {group}",
            "",
            "| name | meaning | unit | range | default |",
            "|" + "---|" * 5,
        ]
        for one in (found[name] for name in names):
            cells = (
                f"`{one.name}`",
                one.setting.meaning,
                one.setting.unit,
                range_of(one),
                default_of(one),
            )
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        used = {name: used_by(name) for name in names}
        for title, values in (
            (
                "Methods that take each of them, by default:",
                {name: one.defaults for name, one in used.items()},
            ),
            (
                "Values in presets of workloads:",
                {name: one.workloads for name, one in used.items()},
            ),
        ):
            listed = [f"- `{name}`: {by_value(own)}" for name, own in values.items() if own]
            lines += ["", title, "", *listed] if listed else []
    return "\n".join([*lines, "", *_together(), ""])


def _together() -> list[str]:
    """The lines of the section."""
    rules = all_rules()
    hard, idle = (_merged(rules, idle=idle) for idle in (False, True))
    return [
        TOGETHER,
        "",
        *_table(("setting", "needs", "not with", "why, and what to do"), hard),
        "",
        NO_EFFECT,
        "",
        *_table(("setting", "has an effect with"), [row[:2] for row in idle]),
        "",
        MATRIX,
        "",
        *_table(("", *map(_name, MODES)), _pairs(rules)),
        "",
        METHODS,
        "",
        *_table(("method", *map(_name, OF_METHODS)), _of_methods(rules)),
    ]


def _pairs(rules: Sequence[Rule]) -> Iterator[Sequence[str]]:
    for place, first in enumerate(MODES):
        cells = (
            "" if second == first or _possible(rules, first, second) else "x"
            for second in MODES[: place + 1]
        )
        yield _name(first), *cells, *[""] * (len(MODES) - place - 1)


def _of_methods(rules: Sequence[Rule]) -> Iterator[Sequence[str]]:
    for name in strategies.names():
        yield f"`{name}`", *("" if _method_goes(rules, name, mode) else "x" for mode in OF_METHODS)


def _method_goes(rules: Sequence[Rule], name: str, mode: str) -> bool:
    wanted = example(mode)
    share: dict[str, Any] = (
        {"noise_share": SHARE} if wanted.get("trust") in ("secure", "aggregate") else {}
    )
    try:
        method = strategies.recipe(name, **share)
        if "personal" in wanted:
            method = replace(method, personal="classifier")
    except ValueError:
        return False
    return _possible(rules, mode, facts=method_facts(Settings(), method))


def _possible(rules: Sequence[Rule], *modes: str, facts: Facts = PRIVATE) -> bool:
    """Whether some values of the other settings break no rule."""
    wanted: dict[str, Any] = {"deployed": False, "batch_size": 1}
    for mode in modes:
        found = example(mode)
        if any(
            name in wanted and wanted[name] != value
            for name, value in found.items()
            if name != "deployed"
        ):
            return False  # two values of one setting
        wanted |= found
    tried = [
        {**dict(zip(FREE, values, strict=True)), **facts, **wanted}
        for values in product(*FREE.values())
    ]
    tried = [{**one, **unit_facts(one["unit"])} for one in tried]
    return any(not any(not rule.idle and rule.broken(one) for rule in rules) for one in tried)


def _merged(rules: Sequence[Rule], *, idle: bool) -> list[Sequence[str]]:
    """A row for each thing that is said, with all the settings that it is said of."""
    found: dict[tuple[str, ...], list[str]] = {}
    for rule in rules:
        if rule.idle == idle:
            row = (*sides(rule), "" if idle else plain(rule.why))
            found.setdefault(row, []).append(_name(spell(rule.of, FACTS)))
    return [(", ".join(dict.fromkeys(names)), *row) for row, names in found.items()]


def _name(mode: str) -> str:
    return FACTS.get(mode) or f"`{mode}`"


def _table(head: Sequence[str], rows: Any) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines]


PRESETS = """# Presets: the papers' rows by name

Made by `python -m docs._sphinx.settings`; do not edit. A preset is one row of a paper's table as settings. Run it with
`fedlsg run --preset NAME`; other options override the preset's settings. `fedlsg list presets NAME` shows all of them.

Each preset is the paper's own setting: one client that holds all data. The accuracies (%) are the papers' numbers, not
measured with fedlsg. A preset costs as much computing as the paper's run; most need a GPU. Names are
`method-workload[-model]-eps[-r][-p]`, without the models WRN-28-4, RoBERTa-base and ResNet-50. Column C is the clip
norm, r the rank, p the share of frozen weights or units (for DP-SSGD: pre-pruned share +
dropped share).""".splitlines()


def presets_page(listed: Sequence[Published]) -> str:
    """The page docs/presets.md: a table for each paper, and the numbered notes."""
    numbers = numbered(listed)
    lines = [*PRESETS]
    titles = [title for title, _ in COLUMNS]
    for paper in dict.fromkeys(preset.paper for preset in listed):
        lines += ["", f"## {paper}", "", f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
        for preset in listed:
            if preset.paper == paper:
                cells = list(row(preset, numbers))
                cells[0] = "<br>".join(f"`{name}`" for name in (preset.name, *preset.aliases))
                cells[1] = preset.where
                lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Notes", "", *(f"{index}. {note}" for note, index in numbers.items()), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    (PAGES / "settings.md").write_text(settings_page())
    (PAGES / "presets.md").write_text(presets_page(presets()))
