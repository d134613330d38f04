"""Settings by name from raw values, and back: one way in for the command line, TOML files and Flower's run config.

The same names serve the command line (``--rank 8`` or ``-c rank=8``), ``flwr run . --run-config "rank=8"`` (with
dashes) and ``config.toml`` of a run directory. A setting that is None, or ``"preset"`` in a file, takes the
workload's value (see ``simulations.settings.resolve``).
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from simulations.settings.declared import RUN, declarations, in_order
from simulations.settings.run import Bits, Settings

__all__ = ["PRESET", "Bits", "Settings", "as_config", "from_mapping", "from_values", "parse", "values_of"]

PRESET = "preset"


def parse(given: Mapping[str, object]) -> dict[str, Any]:
    """Settings by name from raw values (strings from a command line, typed ones from TOML); dashes allowed.

    Leaves out what is None or ``"preset"``. Raises ValueError naming the setting for an unknown name, with the
    nearest known one, or a value of the wrong type or out of its range.
    """
    return {
        declared.name: declared.parse(given[raw_name])
        for raw_name, declared in declarations(given).items()
        if given[raw_name] is not None and given[raw_name] != PRESET
    }


def from_mapping(given: Mapping[str, object]) -> Settings:
    """``Settings`` from raw values, see ``parse``."""
    return from_values(parse(given))


def from_values(values: Mapping[str, Any]) -> Settings:
    """``Settings`` from parsed values by name."""
    own = {name: value for name, value in values.items() if name not in RUN}
    return Settings(**{name: value for name, value in values.items() if name in RUN}, parameters=own)


def values_of(settings: Settings) -> dict[str, Any]:
    """All settings that have a value, by name, in the order of config.toml."""
    run = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name != "parameters"}
    found = {**run, **settings.parameters}
    return {name: found[name] for name in in_order(found) if found[name] is not None}


def as_config(settings: Settings) -> dict[str, str | int | float | bool]:
    """Flat TOML-ready mapping with dashes, as Flower's run config wants it; what is None is left out."""
    return {name.replace("_", "-"): value for name, value in values_of(settings).items()}
