"""The settings of a run as a folded section of its page, by theme.

Those that differ from the defaults come first.
"""

from typing import Any

from fedlsg import strategies
from fedlsg.simulations import workloads
from fedlsg.simulations.report.pages.page import Section, Text, facts_of
from fedlsg.simulations.settings.automatic import preset_of
from fedlsg.simulations.settings.resolve import FALLBACK, GRID
from fedlsg.simulations.settings.settings import all_settings
from fedlsg.simulations.settings.show_settings import by_group, text_of
from fedlsg.simulations.storage.results import Result, Summary

CHANGED = "Different from the defaults"
NOTE = (
    "Every setting that was used; fedlsg settings NAME says what it means. A default is that of "
    "the method and of the workload's preset."
)
FOLLOW = frozenset(
    {
        "model",
        "pretrained_sha256",
        "workload",
        "method",
        "from_preset",
        "auto",
        "source",
        "isolation",
    }
)
"""Settings that are shown elsewhere on the page, or whose default depends on the data."""


def settings_section(result: Result, values: Summary) -> Section:
    """The section of a run; ``values``: the settings to show, by name."""
    shown = {name: text_of(value) for name, value in values.items()} | sent(
        result.settings, result.summary
    )
    changed = {name: shown[name] for name in changed_of(result.settings, values)}
    known = all_settings()
    groups = by_group({name: known[name] for name in shown if name in known})
    # of a method that is known elsewhere
    others = [name for name in shown if name not in known]
    groups |= {"Others": others} if others else {}
    parts = [
        facts_of({name: shown[name] for name in names}, title=group)
        for group, names in groups.items()
    ]
    first = [facts_of(changed, title=CHANGED)] if changed else []
    return Section(
        title="Settings", folded=True, parts=(Text(words=NOTE, style="note"), *first, *parts)
    )


def sent(settings: Summary, summary: Summary) -> dict[str, str]:
    """What is sent in place of a codec under trust=secure; empty for other trust."""
    return {"codec": f"{GRID}: {values_line(summary)}"} if settings.get("trust") == "secure" else {}


def values_line(summary: Summary) -> str:
    """How a client's values are sent, in words."""
    codec = summary.get("codec", {})
    if codec.get("name") != GRID and summary.get("trust") != "secure":
        return str(codec.get("name", ""))
    bits = codec.get("bits")
    size = "of as many bits as the sum needs" if bits is None else f"of {bits} bits each"
    return f"packed integers {size}, masked; only their sum can be read"


def changed_of(settings: Summary, shown: Summary) -> list[str]:
    """Names of settings with another value than the workload and the method give.

    Settings that follow from others are left out.
    """
    usual = defaults(str(settings.get("workload")), str(settings.get("method")))
    return [
        name
        for name, value in shown.items()
        if name in usual
        and not _same(value, usual[name])
        and name not in FOLLOW
        and not _follows(name, settings)
    ]


def defaults(workload: str, method: str) -> dict[str, Any]:
    """The default of each setting for a method on a workload; no preset for a workload unknown
    here.
    """
    usual = {name: setting.default for name, setting in all_settings().items()} | dict(FALLBACK)
    if method in strategies.names():
        usual |= {name: setting.default for name, setting in strategies.declared_by(method).items()}
        usual |= {"mechanism": strategies.default_mechanism(method)}
    try:
        common, of_methods = workloads.presets(workload)
    except (ValueError, OSError, ImportError):
        return usual
    if method not in strategies.names():
        return {**usual, **common, **of_methods.get(method, {})}
    return usual | preset_of(workload, method, common, of_methods)


def _same(value: object, usual: object) -> bool:
    """Whether two values are equal, or are written equally: records have texts."""
    return value == usual or str(value) == str(usual)


def _follows(name: str, settings: Summary) -> bool:
    """Whether a value was computed from other settings."""
    follows = {
        "noise_multiplier": settings.get("epsilon") is not None,
        "clients_per_round": settings.get("clients_per_round") == settings.get("clients"),
        "local_learning_rate": settings.get("local_steps", 1) == 1,
        "min_survivors": settings.get("trust", "client") == "client",
        "downlink_codec": settings.get("downlink", "full") == "full",
    }
    return bool(follows.get(name, False))
