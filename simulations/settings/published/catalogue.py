"""All presets by name: unique, sorted, found by name, alias or words."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType

from simulations.settings.published import de_et_al, dp_ssgd, lsg, lsg_lora, rgp, rs
from simulations.settings.published.preset import Published

PAPERS = (lsg, rgp, lsg_lora, rs, dp_ssgd, de_et_al)


@cache
def presets() -> tuple[Published, ...]:
    """All presets, sorted by name, the numbers in it by size."""
    return tuple(sorted((preset for paper in PAPERS for preset in paper.presets()), key=lambda p: by_size(p.name)))


@cache
def by_name() -> Mapping[str, Published]:
    """Every name and alias. Raises ValueError where two presets share one."""
    return index(presets())


def index(listed: tuple[Published, ...]) -> Mapping[str, Published]:
    """Presets by name and alias. Raises ValueError where two share one."""
    table: dict[str, Published] = {}
    for preset in listed:
        for name in (preset.name, *preset.aliases):
            if name in table:
                raise ValueError(f"preset name {name!r} is taken: {table[name].source}, and {preset.source}")
            table[name] = preset
    return MappingProxyType(table)


def find(name: str) -> Published:
    """The preset of a name or alias. Raises ValueError for an unknown one, with the nearest known name."""
    table = by_name()
    if name not in table:
        near = get_close_matches(name, table, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown preset {name!r}{hint} (fedlsg list presets lists them all)")
    return table[name]


def matching(words: str) -> tuple[Published, ...]:
    """Presets that contain every word, in any case, in name, aliases, workload, model, method, paper or place.

    Words that are a place of a paper as a whole, such as "LSG (Ito et al. 2023), Table 2", give that place's alone.
    """
    if there := tuple(preset for preset in presets() if preset.source.lower() == words.lower()):
        return there
    wanted = words.lower().split()
    return tuple(preset for preset in presets() if all(word in searched(preset) for word in wanted))


def searched(preset: Published) -> str:
    """The text that ``matching`` looks into."""
    settings = [str(preset.settings[key]) for key in ("workload", "model", "method")]
    return " ".join((preset.name, *preset.aliases, *settings, preset.source)).lower()


def by_size(name: str) -> tuple[tuple[int, float, str], ...]:
    """Sort key under which ``r16`` follows ``r8``, and ``eps1.7`` follows ``eps0.8``."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return tuple((1, float(part), "") if index % 2 else (0, 0.0, part) for index, part in enumerate(parts))
