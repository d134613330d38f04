"""Who uses a setting: methods with their defaults, and the workloads whose presets change it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import strategies
from simulations import workloads
from simulations.settings.declared import RUN, codec_settings, mechanism_settings, method_settings, server_settings

GROUPS = {
    "workload": "Data and model",
    "epsilon": "Privacy",
    "rounds": "Federation and local training",
    "codec": "Messages and records",
    "engine": "Where it runs",
}
"""Groups of the settings of every run, by the first of each."""


@dataclass(frozen=True, kw_only=True)
class Used:
    """``by``: who has the setting, in words; ``defaults`` by method; ``workloads``: values of their presets."""

    by: str
    defaults: Mapping[str, Any]
    workloads: Mapping[str, str]


def used_by(name: str) -> Used:
    """Who uses a setting."""
    methods = strategies.takers_of(name)
    defaults = {method: strategies.declared_by(method)[name].default for method in methods}
    every = {"mechanism": mechanism_settings(), "server": server_settings(), "codecs": codec_settings()}
    by = next((f"{part} of every method" for part, found in every.items() if name in found), "every run")
    return Used(by=", ".join(methods) or by, defaults=defaults, workloads=_presets(name))


def group_of(name: str) -> str:
    """The group that a setting is listed in."""
    if name in codec_settings():
        return "Messages and records"
    if name in method_settings():
        return "Methods"
    if name in mechanism_settings():
        return "Privacy"
    if name in server_settings():
        return "Server"
    before = list(RUN)[: list(RUN).index(name) + 1]
    return next(GROUPS[run] for run in reversed(before) if run in GROUPS)


@cache
def _presets(name: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for workload in workloads.names():
        common, own = workloads.presets(workload)
        values = [str(common[name])] if name in common else []
        values += [f"{row[name]} for {method}" for method, row in own.items() if name in row]
        if values:
            found[workload] = ", ".join(values)
    return found
