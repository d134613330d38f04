"""What goes together, for a reader: every rule of the one checker, and matrices that the checker itself fills."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import strategies
from fedlsg.payload import DEFAULT_CODEC
from fedlsg.setting.mechanisms import DP
from fedlsg.setting.rules import Facts, Rule, example, spell
from fedlsg.setting.units import UNITS
from simulations.settings.checks import SHARE, WORDS, all_rules, codec_lists, method_facts, unit_facts
from simulations.settings.run import Settings

MODES = (
    "trust=secure", "trust=aggregate", "trust=server", "unit=client", "sampling=shuffle", "personal", "downlink=sparse",
    "indices=explicit", "over_selection", "deadline", "evaluate_clients", "record_updates", "deployed",
)  # fmt: skip
OF_METHODS = ("trust=secure", "trust=aggregate", "trust=server", "unit=client", "personal", "over_selection")
FREE: Mapping[str, Sequence[str]] = {
    "trust": ("client", "secure", "aggregate", "server"), "unit": tuple(UNITS), "codec": (DEFAULT_CODEC,),
    "sampling": ("poisson", "shuffle"), "downlink": ("full", "sparse"), "indices": ("derived", "explicit"),
}  # fmt: skip
"""Settings whose other values are tried before a pair is called impossible."""
PRIVATE = {"mechanism": DP.name, "private": True, "noise": True, "clip": "joint", "grid_from_noise": False}

HEAD = """## What goes together

Every setting declares what it needs; one checker reads that before data are loaded, with the gaps filled, and with the
method built. A name alone stands for the setting with any value that is not off. A setting that only has no effect is
refused where its user gave it; a preset may have it, and a comparison in which some cell uses it."""
NO_EFFECT = "Settings that have no effect otherwise:"
MATRIX = "Pairs of options, each with the rest chosen as it needs; `x`: they exclude each other."
METHODS = "Methods and options; `x`: the method does not go with it."


def rule_lines(name: str) -> str:
    """The rules of a setting, a line each."""
    return "\n".join(_words(rule) for rule in all_rules() if rule.name == name)


def as_markdown() -> list[str]:
    """The lines of the section."""
    rules = all_rules()
    hard, idle = (_merged(rules, idle=idle) for idle in (False, True))
    return [
        HEAD, "", *_table(("setting", "needs", "not with", "why, and what to do"), hard), "",
        NO_EFFECT, "", *_table(("setting", "has an effect with"), [row[:2] for row in idle]), "",
        MATRIX, "", *_table(("", *map(_name, MODES)), _pairs(rules)), "",
        METHODS, "", *_table(("method", *map(_name, OF_METHODS)), _of_methods(rules)),
    ]  # fmt: skip


def _pairs(rules: Sequence[Rule]) -> Iterator[Sequence[str]]:
    for place, first in enumerate(MODES):
        cells = ("" if second == first or _possible(rules, first, second) else "x" for second in MODES[: place + 1])
        yield _name(first), *cells, *[""] * (len(MODES) - place - 1)


def _of_methods(rules: Sequence[Rule]) -> Iterator[Sequence[str]]:
    for name in strategies.names():
        yield f"`{name}`", *("" if _method_goes(rules, name, mode) else "x" for mode in OF_METHODS)


def _method_goes(rules: Sequence[Rule], name: str, mode: str) -> bool:
    wanted = example(mode)
    share: dict[str, Any] = {"noise_share": SHARE} if wanted.get("trust") in ("secure", "aggregate") else {}
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
        if any(name in wanted and wanted[name] != value for name, value in found.items() if name != "deployed"):
            return False  # two values of one setting
        wanted |= found
    tried = [{**dict(zip(FREE, values, strict=True)), **facts, **wanted} for values in product(*FREE.values())]
    tried = [{**one, **unit_facts(one["unit"])} for one in tried]
    return any(not any(not rule.idle and rule.broken(one) for rule in rules) for one in tried)


def _merged(rules: Sequence[Rule], *, idle: bool) -> list[Sequence[str]]:
    """A row for each thing that is said, with all the settings that it is said of."""
    found: dict[tuple[str, ...], list[str]] = {}
    for rule in rules:
        if rule.idle == idle:
            row = (*_sides(rule), "" if idle else _plain(rule.why))
            found.setdefault(row, []).append(_name(spell(rule.of, WORDS)))
    return [(", ".join(dict.fromkeys(names)), *row) for row, names in found.items()]


def _sides(rule: Rule) -> tuple[str, str]:
    """What a rule needs, and what it does not go with."""
    if rule.needs.startswith("not "):
        return "", _plain(WORDS.get(rule.needs[4:], f"`{rule.needs[4:]}`"))
    return _plain(spell(rule.needs, WORDS)), ""


def _words(rule: Rule) -> str:
    wanted, without = _sides(rule)
    verb = "has an effect with" if rule.idle else "needs" if wanted else "does not go with"
    return f"{rule.of.replace('|', ' or ')} {verb} {wanted or without}".replace("`", "")


def _plain(text: str) -> str:
    """Without what only a run knows."""
    for name, value in codec_lists().items():
        text = text.replace(f"{{{name}}}", str(value))
    text = re.sub(r" \([^()]*\{[^()]*\)|=\{\w+\}", "", text)
    return re.sub(r"\{(\w+)(!r)?\}", r"\1", text)


def _name(mode: str) -> str:
    return WORDS.get(mode) or f"`{mode}`"


def _table(head: Sequence[str], rows: Any) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines]
