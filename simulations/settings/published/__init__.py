"""The rows of papers' tables as named presets (``Published``), and functions to find them.

A preset is a mapping of settings; ``with_preset`` merges it under a user's own. Importing this
package imports no torch.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType

from fedlsg.simulations.settings.published.preset import Published, rows_of

TABLES = Path(__file__).parent / "tables"


@cache  # the tables come with the package
def presets() -> tuple[Published, ...]:
    """All presets, sorted by name, in which numbers are sorted by size."""
    rows = (preset for path in sorted(TABLES.glob("*.toml")) for preset in rows_of(path))
    return tuple(sorted(rows, key=lambda preset: by_size(preset.name)))


@cache  # the tables come with the package
def by_name() -> Mapping[str, Published]:
    """Presets by name and alias. Raises ValueError if two share a name."""
    table: dict[str, Published] = {}
    for preset in presets():
        for name in (preset.name, *preset.aliases):
            if name in table:
                raise ValueError(
                    f"preset name {name!r} is taken: {table[name].source}, and {preset.source}"
                )
            table[name] = preset
    return MappingProxyType(table)


def find(name: str) -> Published:
    """The preset of a name or alias. Raises ValueError, with the nearest name, for others."""
    table = by_name()
    if name not in table:
        near = get_close_matches(name, table, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown preset {name!r}{hint} (fedlsg list presets lists them all)")
    return table[name]


def matching(words: str) -> tuple[Published, ...]:
    """Presets with every word, in any case, in their ``search_text``.

    Words that are a place in a paper, such as "LSG (Ito et al. 2023), Table 2", give only the
    presets of that place.
    """
    of_place = tuple(preset for preset in presets() if preset.source.lower() == words.lower())
    if of_place:
        return of_place
    parts = words.lower().split()
    return tuple(
        preset for preset in presets() if all(part in search_text(preset) for part in parts)
    )


def search_text(preset: Published) -> str:
    """Name, aliases, workload, model, method, paper and place of a preset, in lower case."""
    settings = [str(preset.settings[key]) for key in ("workload", "model", "method")]
    return " ".join((preset.name, *preset.aliases, *settings, preset.source)).lower()


def by_size(name: str) -> tuple[tuple[int, float, str], ...]:
    """Sort key under which ``r16`` follows ``r8``, and ``eps1.7`` follows ``eps0.8``."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return tuple(
        (1, float(part), "") if index % 2 else (0, 0.0, part) for index, part in enumerate(parts)
    )


__all__ = ["Published", "find", "matching", "presets"]
