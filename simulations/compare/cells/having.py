"""Whether a method has a setting: a comparison drops what a method lacks, and says so."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import strategies

NOISE = frozenset({"epsilon", "noise_multiplier", "delta"})
"""Settings that say nothing where no noise is added."""
CLIP = frozenset({"clip", "clip_norm", "norms_clip_weight", "classifier_clip_weight"})
"""Settings that say nothing where neither a clip nor noise is."""


def lacks(method: str, name: str, settings: Mapping[str, Any], values: Sequence[Any] = ()) -> bool:
    """Whether no value of the setting ``name`` changes a run of this method with the other ``settings``.

    values: what it is to be varied over; a setting of a recipe that gives the same method for all of them is lacking,
    such as the rank of ``rs`` on dense gradients.
    """
    kind = settings.get("mechanism") or strategies.default_mechanism(method)
    if name in NOISE:
        return kind in ("none", "clip-only")
    if name in CLIP:
        return kind == "none"
    if name in strategies.own_settings(method):
        return len(values) > 1 and not _looks_at(method, name, settings, values)
    return name in strategies.recipe_settings()


def _looks_at(method: str, name: str, settings: Mapping[str, Any], values: Sequence[Any]) -> bool:
    own = {key: value for key, value in settings.items() if key in strategies.own_settings(method)}
    try:
        first, *others = (strategies.recipe(method, **(own | {name: value})) for value in values)
    except ValueError:  # settings that its cells will be refused for, each with its reason
        return True
    return any(other != first for other in others)


def dropped_lines(dropped: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each method that lacks settings, from (label, setting) pairs."""
    found: dict[str, list[str]] = {}
    for label, name in dropped:
        found.setdefault(label, []).append(name)
    groups: dict[tuple[str, ...], list[str]] = {}
    for label, names in found.items():
        groups.setdefault(tuple(dict.fromkeys(names)), []).append(label)
    return [
        f"{', '.join(names)}: no setting of {', '.join(labels)}, left out there" for names, labels in groups.items()
    ]
