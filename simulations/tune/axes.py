"""What is tuned: a setting and the values that it may take, from ``--vary NAME`` or ``--vary NAME=4,8,16``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import strategies
from fedlsg.setting import Declared, unknown
from simulations.compare.cells.grid import AXES
from simulations.plan.continuity import HARMLESS
from simulations.settings.settings import (
    RUN,
    codec_settings,
    mechanism_settings,
    method_settings,
    server_settings,
)

REACH = 6
"""A grid of powers of 2 reaches so many steps to either side of its start: from 1/64 to 64 times."""

USUAL = ("learning_rate", "clip_norm", "rank", "out_rank", "refresh_rounds")
"""What is tuned if nothing is said, as far as the method has it and it has a value to start from."""

REFUSED = HARMLESS | {*AXES} | {
    "preset", "from_preset", "noise_multiplier", "delta", "unit", "trust", "min_survivors", "colluders", "reproducible",
    "sampling", "mechanism", "dataset", "subset", "input_columns", "label_column", "test_split", "train_rows",
    "holdout", "public_rows",
}  # fmt: skip
"""Settings that change what is measured or how private it is: the best accuracy does not choose them."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A setting and its values, numbers ascending. ``listed``: the user gave them, and each is tried.

    Else they are a grid around ``values[start]``, of which only as much is tried as brackets the best value.
    ends: the least and the largest value that the setting takes, None where there is none.
    """

    name: str
    values: tuple[Any, ...]
    start: int
    listed: bool
    ends: tuple[float | None, float | None] = (None, None)

    @property
    def ordered(self) -> bool:
        """Whether the values are numbers, so that the first and the last are edges."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


def make_axes(vary: Sequence[str], method: str, resolved: Mapping[str, Any]) -> tuple[Axis, ...]:
    """The axes of ``--vary`` texts, or the usual ones without any; they start at the values in ``resolved``.

    Raises ValueError, naming the setting and the fix, for one that is unknown, that the method does not have, that is
    not chosen by accuracy, or that has no value to start from.
    """
    own = tunable(method)
    if not vary:
        usual = [name for name in USUAL if name in own and _positive(resolved.get(name))]
        return tuple(make_axis(own[name], None, resolved.get(name)) for name in usual)
    found: dict[str, Axis] = {}
    for text in vary:
        spelt, sign, listed = text.partition("=")
        name = spelt.strip().replace("-", "_")
        if name in found:
            raise ValueError(f"--vary {name} is given twice: give it once")
        if name in REFUSED:
            raise ValueError(f"--vary {name}: it changes what is measured or how private it is, give it with -c")
        if name not in own:
            raise unknown(f"setting of {method} to vary", name, own)
        values = [word.strip() for word in listed.split(",") if word.strip()] if sign else None
        found[name] = make_axis(own[name], values, resolved.get(name))
    return tuple(found.values())


def tunable(method: str) -> dict[str, Declared]:
    """Declarations of the settings that a run of this method has and that accuracy may choose."""
    declared = {**RUN, **mechanism_settings(), **server_settings(), **codec_settings(), **method_settings()}
    own = {*RUN, *mechanism_settings(), *server_settings(), *codec_settings(), *strategies.own_settings(method)}
    return {name: one for name, one in declared.items() if name in own and name not in REFUSED}


def make_axis(declared: Declared, listed: Sequence[str] | None, start: Any) -> Axis:
    """The values given, or the choices of the setting, or powers of 2 times the start that are in its range.

    Raises ValueError, naming the setting, for a value out of its range or a start that no power of 2 moves.
    """
    name = declared.name
    if listed is None and (declared.choices or declared.kind is bool):
        listed = [str(choice) for choice in declared.choices or (False, True)]
    if listed is not None:
        values = _distinct(declared.parse(value) for value in listed)
        if not values:
            raise ValueError(f"expected values after --vary {name}=, such as --vary {name}=4,8,16")
        ends = declared.setting.at_least, declared.setting.at_most
        return Axis(name=name, values=values, start=_nearest(values, start), listed=True, ends=ends)
    if declared.kind not in (int, float) or not _positive(start):
        raise ValueError(f"--vary {name}: {start!r} is no number to double and halve, give values: --vary {name}=A,B")
    grid = [start * 2.0**k for k in range(-REACH, REACH + 1)]
    grid = [round(value) for value in grid] if declared.kind is int else grid
    values = _distinct(value for value in grid if declared.setting.contains(value) and value > 0)
    return Axis(name=name, values=values, start=values.index(start), listed=False)


def _distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    """Values without repetitions, numbers ascending."""
    found = list(dict.fromkeys(values))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in found)
    return tuple(sorted(found) if numbers else found)


def _nearest(values: Sequence[Any], start: Any) -> int:
    """The position of the start among the values, else the middle."""
    return values.index(start) if start in values else len(values) // 2


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
