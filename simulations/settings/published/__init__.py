"""The papers' table rows as named presets (``Published``), a table a paper, and how to find one.

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
    """All presets, sorted by name, the numbers in it by size."""
    rows = (preset for path in sorted(TABLES.glob("*.toml")) for preset in rows_of(path))
    return tuple(sorted(rows, key=lambda preset: by_size(preset.name)))


@cache  # the tables come with the package
def by_name() -> Mapping[str, Published]:
    """Presets by name and alias. Raises ValueError where two share one."""
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
    """The preset of a name or alias. Raises ValueError for an unknown one, with the nearest known
    name.
    """
    table = by_name()
    if name not in table:
        near = get_close_matches(name, table, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown preset {name!r}{hint} (fedlsg list presets lists them all)")
    return table[name]


def matching(words: str) -> tuple[Published, ...]:
    """Presets that contain every word, in any case, in name, aliases, workload, model, method,
    paper or place.

    Words that are a place of a paper as a whole, such as "LSG (Ito et al. 2023), Table 2", give
    that place's alone.
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
    return tuple(
        (1, float(part), "") if index % 2 else (0, 0.0, part) for index, part in enumerate(parts)
    )


__all__ = ["Published", "find", "matching", "presets"]
