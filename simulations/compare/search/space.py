"""What a search varies: ranges and lists of values, read from ``--search``.

The option is a text, "learning_rate=log:0.1..10; rank=int:2..16; clip_norm=0.5,1,2", or a TOML file
with the same words:

    learning_rate = "log:0.1..10"   # from 0.1 to 10, logarithmic
    clip_norm = [0.5, 1, 2]         # one of these
    [lsg]                           # of this method alone
    rank = "int:2..16"              # whole numbers

``x0.5,x1,x2`` are multiples of the value that a run has without a search.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedlsg import strategies
from fedlsg.config import Declared, unknown
from fedlsg.config.choices import choose
from fedlsg.simulations.compare.grid.cells import AXES, Entry, is_number, lacks
from fedlsg.simulations.compare.grid.grid_file import read_toml
from fedlsg.simulations.planning.earlier_runs.continuity import HARMLESS
from fedlsg.simulations.settings.automatic import RULED
from fedlsg.simulations.settings.settings import (
    FACTOR,
    RATE,
    RUN,
    Settings,
    codec_settings,
    mechanism_settings,
    method_settings,
    server_settings,
    values_of,
)

REFUSED = (
    HARMLESS
    | {*AXES}
    | {
        "preset",
        "from_preset",
        "noise_multiplier",
        "delta",
        "unit",
        "trust",
        "min_survivors",
        "colluders",
        "reproducible",
        "sampling",
        "mechanism",
        "dataset",
        "subset",
        "input_columns",
        "label_column",
        "test_split",
        "image_background",
        "image_frame",
        "train_rows",
        "holdout",
        "public_rows",
        "isolation",
    }
)
"""Settings that a search does not vary: they change what is measured, or how private it is."""

NEAR = 0.05
"""A value is at the edge of a range if it is in its lowest or highest twentieth, on its scale."""
EXAMPLE = '--search "learning_rate=log:0.1..10; rank=int:2..16; clip_norm=0.5,1,2", or a TOML file'

MULTIPLES = re.compile(f"{FACTOR}(,{FACTOR})*")
"""A list of multiples, such as x0.5,x1,x2."""
KINDS = re.compile(r"\s*((?:(?:log|int):)*)(.*)", re.DOTALL)
"""The words in front of a range, each with its colon, and the rest of the text."""

Side = Literal["lowest", "highest"]
"""The edge of a range."""
Spec = dict[tuple[str, str], str]
"""Ranges as texts, by (label of a method, or "" for all methods; setting)."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """All values of a setting from ``low`` to ``high``, both included.

    name: of the setting.
    log: values are tried on a logarithmic scale.
    whole: values are integers.
    """

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def including(self, value: Any) -> "Span":
        """The same range: only lists take the value of a run without a search."""
        return self

    def holds(self, value: Any) -> bool:
        """Whether a value is in the range."""
        return is_number(value) and self.low <= value <= self.high

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that a check of the range tries."""
        return (self.low, self.high)

    def side(self, value: float) -> Side | None:
        """The edge that the value is at, if any: see ``NEAR``; for integers the end itself."""
        low, high, place = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        near = 0.0 if self.whole else NEAR
        share = (place - low) / (high - low)
        if share <= near:
            return "lowest"
        return "highest" if share >= 1 - near else None

    @property
    def words(self) -> str:
        """The range for people: "2 to 16 (integers)"."""
        kinds = {"integers": self.whole, "logarithmic": self.log}
        kind = ", ".join(word for word, is_so in kinds.items() if is_so)
        return f"{shown(self.low)} to {shown(self.high)}" + (f" ({kind})" if kind else "")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A list of values of a setting; numbers are ascending."""

    name: str
    values: tuple[Any, ...]

    def including(self, value: Any) -> "Choices":
        """The list with one more value, that of a run without a search; None adds nothing."""
        if value is None or value in self.values:
            return self
        return replace(self, values=in_order((*self.values, value)))

    def holds(self, value: Any) -> bool:
        """Whether a value is one of the list."""
        return value in self.values

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that a check of the list tries: all."""
        return self.values

    def side(self, value: Any) -> Side | None:
        """The edge that the value is at, if it is the first or the last of a list of numbers."""
        if not all(map(is_number, self.values)) or value not in (self.values[0], self.values[-1]):
            return None
        return "lowest" if value == self.values[0] else "highest"

    @property
    def words(self) -> str:
        """The values for people, with commas."""
        return ", ".join(map(shown, self.values))


Dimension = Span | Choices


def in_order(values: Sequence[Any]) -> tuple[Any, ...]:
    """Numbers ascending; other values as they are."""
    return tuple(sorted(values) if all(map(is_number, values)) else values)


def read_spec(texts: Sequence[str]) -> Spec:
    """The ranges of ``--search``, which may be given several times.

    A single text that has no "=" or ends with .toml is a file.
    Raises ValueError for a file that cannot be read, and for a setting without a range or with two.
    """
    text = ";".join(texts)
    if len(texts) == 1 and (text.strip().endswith(".toml") or "=" not in text):
        return _from_file(text.strip())
    spec: Spec = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        key, sign, value = part.partition("=")
        label, _, name = key.strip().rpartition(".")
        place = (label, name.replace("-", "_"))
        if not sign or not value.strip():
            raise ValueError(
                f"expected NAME=RANGE or NAME=A,B,C in --search, got {part!r}; for example "
                f"{EXAMPLE}"
            )
        if place in spec:
            raise ValueError(f"--search gives {key.strip()} twice: give it once")
        spec[place] = value.strip()
    if not spec:
        raise ValueError(f"expected {EXAMPLE}")
    return spec


def _from_file(path: str) -> Spec:
    """The ranges of a TOML file; a table in it is those of one method."""
    spec: Spec = {}
    for key, value in read_toml(path, "search", f"; expected {EXAMPLE}").items():
        label, ranges = (key, value) if isinstance(value, dict) else ("", {key: value})
        for name, values in ranges.items():
            text = ",".join(map(shown, values)) if isinstance(values, list) else values
            if not isinstance(text, str):
                raise ValueError(
                    f'{path}: expected {name} as a range ("0.1..10") or a list ([1, 2, 4]), '
                    f"got {values!r}"
                )
            spec[label, name.replace("-", "_")] = text
    if not spec:
        raise ValueError(
            f'{path} varies no setting: expected lines such as learning_rate = "log:0.1..10"'
        )
    return spec


def in_numbers(spec: Spec, starts: Mapping[str, Mapping[str, Any]]) -> Spec:
    """The ranges with numbers in place of multiples.

    starts: the values that each method has without a search, by its label. Multiples for all
        methods become numbers of each method's own.
    Raises ValueError, naming the setting, for multiples of what is not a number.
    """
    numbers: Spec = {}
    for (owner, name), text in spec.items():
        if MULTIPLES.fullmatch(text) is None:
            numbers[owner, name] = text
            continue
        factors = [float(word.strip()[1:]) for word in text.split(",")]
        labels = [owner] if owner else [label for label in starts if (label, name) not in spec]
        for label in labels:
            start = starts.get(label, {}).get(name)
            if start is None:  # a method may lack it: ``make_spaces`` says so
                numbers[label, name] = text
            elif not is_number(start):
                raise ValueError(f"--search {name}={text}: its value, {start!r}, has no multiples")
            else:
                numbers[label, name] = ",".join(shown(start * factor) for factor in factors)
    return numbers


def kept_of_rule(settings: Settings, space: Sequence[Dimension]) -> dict[str, Any]:
    """The settings that the rule chose with the learning rate, if the rate is searched.

    A given rate turns the rule off: it would be a rate of plain SGD in other batches. Then no trial
    would be as good as the run without a search.
    """
    chosen = (settings.auto or "").split()
    searched = {dimension.name for dimension in space}
    if RATE not in chosen or RATE not in searched:
        return {}
    values = values_of(settings)
    return {name: values[name] for name in chosen if name in RULED and name not in searched}


def make_spaces(
    spec: Spec, entries: Sequence[Entry], given: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, tuple[Dimension, ...]], list[tuple[str, str]]]:
    """What each method varies, by label, and the (label, setting) pairs that are left out.

    A pair is left out if the method lacks the setting.

    given: the settings that each method has anyway, by label.
    Raises ValueError, naming the setting and the fix, for one that no method has, that is not
    chosen by accuracy, that is given elsewhere, or whose range is not valid.
    """
    labels = [entry.label for entry in entries]
    tunables = {entry.label: tunable(entry.method) for entry in entries}
    every = {name: one for own in tunables.values() for name, one in own.items()}
    for label, name in spec:
        if label:
            choose("method of this search", label, dict.fromkeys(labels))
        if name in REFUSED:
            raise ValueError(
                f"--search {name}: it changes what is measured or how private it is, give it with "
                "-c"
            )
    spaces: dict[str, tuple[Dimension, ...]] = {}
    dropped: list[tuple[str, str]] = []
    known: set[str] = set()
    for entry in entries:
        own, settings = tunables[entry.label], given[entry.label]
        # the ranges of a method alone replace those of all methods
        texts = {name: text for (label, name), text in spec.items() if not label}
        texts |= {name: text for (label, name), text in spec.items() if label == entry.label}
        dimensions = []
        for name, text in texts.items():
            if name not in own:
                dropped.append((entry.label, name))
                continue
            known.add(name)
            if name in settings:
                raise ValueError(
                    f"{name} is varied by --search: leave -c {name}=... out for {entry.label}"
                )
            dimension = parse(own[name], text)
            if lacks(entry.method, name, settings, dimension.ends):
                dropped.append((entry.label, name))
            else:
                dimensions.append(dimension)
        spaces[entry.label] = tuple(dimensions)
    for _, name in spec:
        if name not in known:
            raise unknown(f"setting of {', '.join(labels)} to vary", name, every)
    if not any(spaces.values()):
        raise ValueError(f"no method of {', '.join(labels)} has a setting of --search")
    return spaces, dropped


def parse(declared: Declared, text: str) -> Dimension:
    """A range ``A..B`` with ``log:`` or ``int:`` in front, or a list ``A,B,C``.

    Raises ValueError, naming the setting, for what is neither, and for values out of the setting's
    range.
    """
    name = declared.name
    match = KINDS.fullmatch(text)
    assert match is not None, "the pattern takes any text"
    kinds = set(filter(None, match[1].split(":")))
    rest = match[2]
    if ".." in rest and declared.kind is not str:
        low_text, _, high_text = rest.partition("..")
        return _span(declared, kinds, low_text, high_text)
    if kinds:
        raise ValueError(
            f"--search {name}={text}: expected a range such as 1..16 after {min(kinds)}:"
        )
    try:
        values = [declared.parse(word.strip()) for word in rest.split(",") if word.strip()]
    except ValueError as error:
        raise ValueError(
            f"--search {name}={text}: expected a list of values such as {name}=A,B,C, or a range "
            f"such as {name}=A..B: {error}"
        ) from error
    values = list(dict.fromkeys(values))
    if len(values) < 2:
        raise ValueError(
            f"--search {name}={text}: a search needs two values at least; fix one with -c "
            f"{name}={text}"
        )
    return Choices(name=name, values=in_order(values))


def _span(declared: Declared, kinds: set[str], low_text: str, high_text: str) -> Span:
    """A range from its ends as texts; ``kinds``: the words in front of it, "log" and "int"."""
    name = declared.name
    if declared.kind is bool:
        raise ValueError(f"--search {name}: it is no number, so give a list: {name}=false,true")
    if "int" in kinds and declared.kind is float:
        raise ValueError(
            f"--search {name}: it is no integer; leave int: out, or give a list: {name}=1,2,4"
        )
    low, high = declared.parse(low_text.strip()), declared.parse(high_text.strip())
    if low is None or high is None or not low < high or math.isinf(high):
        raise ValueError(
            f"--search {name}: expected a range from a lower to a higher number, got "
            f"{low_text}..{high_text}"
        )
    if "log" in kinds and not low > 0:
        raise ValueError(
            f"--search {name}: a logarithmic range starts above 0, got {low_text}..{high_text}"
        )
    return Span(name=name, low=low, high=high, log="log" in kinds, whole=declared.kind is int)


def tunable(method: str) -> dict[str, Declared]:
    """Declarations of the settings that a run of this method has and that accuracy may choose."""
    shared = {**RUN, **mechanism_settings(), **server_settings(), **codec_settings()}
    own = {*shared, *strategies.own_settings(method)} - REFUSED
    declared = shared | method_settings()
    return {name: one for name, one in declared.items() if name in own}


def shown(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def value_words(value: Any) -> str:
    """A value for people."""
    return f"{value:.4g}" if isinstance(value, float) else shown(value)
