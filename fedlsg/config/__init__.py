"""Settings: each has one sentence, a unit and a range, declared where its value is used.

    Rank = Annotated[int, Setting("Rank r of the carriers.", at_least=1)]
    def recipe(*, rank: Rank = 4, ...) -> Method: ...
    declared(recipe)["rank"].parse("8")        8; ValueError "expected rank=0 >= 1" for "0"

Options of the command line, checks, error messages and the reference page are made from these
declarations. Nothing here imports torch.

    rules          what does not go together
    units, mechanisms, selection, partitions
                   the objects that these settings name: a new one is one object there
    choices        suggestions for a misspelt value
    foreign        what other libraries call the settings
    directions     whether more is better of a metric
    isolation      levels at which a private pass runs code
"""

import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from fedlsg.config.choices import did_you_mean
from fedlsg.config.foreign import in_our_words
from fedlsg.config.rules import Rule

REQUIRED = Parameter.empty
"""The default of a setting that must be given."""


@dataclass(frozen=True)
class Setting:
    """The declaration of a setting, next to its type. At most one lower and one upper bound.

    meaning: one sentence.
    unit: of a number.
    at_least, at_most: bounds that are within the range.
    above, below: bounds that are not.
    why: reason for the range; it ends the message for a value out of range.
    aliases: other words for the name: suggestions know them, and nothing accepts them.
    name: the user's name for it; "" if that is the parameter's name.
    fallback: the value if neither the user nor the workload gives one.
    rules: conditions on other settings.
    choices: the objects that the setting names, by name, with rules of their own.
    others: values that may be given in addition to choices, in words.

    The default of a new setting must be what runs did before it existed: an unfinished run goes on
    with it.
    """

    meaning: str = ""
    unit: str = ""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    why: str = ""
    aliases: tuple[str, ...] = ()
    name: str = ""
    fallback: str | float | None = None
    rules: tuple[Rule, ...] = field(default=(), repr=False)
    choices: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    others: str = ""

    def __post_init__(self) -> None:
        if None not in (self.at_least, self.above) or None not in (self.at_most, self.below):
            raise TypeError(f"give one lower and one upper bound at most: {self}")

    def contains(self, value: float) -> bool:
        """Whether a number is in the range; NaN is in none that has a bound."""
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def around(self, word: str) -> str:
        """The range as a text about a word: ``0 < word <= 1``, ``word >= 1``, or ``word`` without
        bounds.
        """
        lower = f"{self.at_least:g} <= " if self.at_least is not None else ""
        lower = f"{self.above:g} < " if self.above is not None else lower
        upper = f" <= {self.at_most:g}" if self.at_most is not None else ""
        upper = f" < {self.below:g}" if self.below is not None else upper
        if upper or not lower:
            return f"{lower}{word}{upper}"
        bound, sign = lower.split()
        return f"{word} {sign.replace('<', '>')} {bound}"


@dataclass(frozen=True, kw_only=True)
class Declared:
    """One declared parameter of a callable, or field of a dataclass.

    name: the name that a user gives.
    kind: bool, int, float or str.
    choices: the values of a ``Literal``, or the names of objects; empty for any value.
    optional: whether None is a value.
    default: ``REQUIRED`` if the value must be given.
    setting: the declaration; an empty one if there is none.
    """

    name: str
    kind: type
    choices: Collection[Any] = ()
    optional: bool = False
    default: Any = REQUIRED
    setting: Setting = Setting()

    @property
    def accepts(self) -> tuple[object, ...]:
        """Type, choices and bounds: equal for declarations that accept the same values."""
        bounds = self.setting.at_least, self.setting.above, self.setting.at_most, self.setting.below
        return self.kind, tuple(self.choices), bounds

    @property
    def range(self) -> str:
        """The accepted values in words: ``a, b or c``, ``true or false``, ``0 < x <= 1``; "" for
        any.
        """
        if self.choices:
            *first, last = (*map(str, self.choices), *filter(None, [self.setting.others]))
            return f"{', '.join(first)} or {last}" if first else last
        if self.kind is bool:
            return "true or false"
        bounds = self.setting.around("x")
        return bounds if bounds != "x" else ""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the setting, with its name in ``of``, and those of its choices."""
        of_choices = (rule for choice in self.setting.choices.values() for rule in choice.rules)
        return tuple(
            replace(rule, of=rule.of or self.name) for rule in (*self.setting.rules, *of_choices)
        )

    def parse(self, value: object) -> Any:
        """The value that a raw one means, which may be a string of a command line.

        Raises ValueError, naming the setting, for a wrong type and for a value outside of choices
        or range.
        """
        parsed = _convert(self, value)
        self.check(parsed)
        return parsed

    def check(self, value: object) -> None:
        """Raise ValueError, naming setting, value and range, unless the setting accepts the
        value.
        """
        if value is None and self.optional:
            return
        if self.choices and value not in self.choices and not self.setting.others:
            near = did_you_mean(str(value), map(str, self.choices))
            raise ValueError(f"expected {self.name} in {tuple(self.choices)}, got {value!r}{near}")
        if self.kind not in (int, float):
            return
        if isinstance(value, bool) or not isinstance(value, Integral if self.kind is int else Real):
            raise ValueError(
                f"expected a number ({self.kind.__name__}) for {self.name}, got {value!r}"
            )
        if not self.setting.contains(cast(float, value)):
            why = f": {self.setting.why}" if self.setting.why else ""
            raise ValueError(f"expected {self.setting.around(f'{self.name}={value}')}{why}")


def summary_of(docstring: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((docstring or "").strip().partition("\n\n")[0].split())


def declared(of: Callable[..., object], *, without: Iterable[str] = ()) -> dict[str, Declared]:
    """The settings that a callable or a dataclass declares, in order, by the user's name for them.

    A parameter without a ``Setting`` is a setting without sentence and range. One without
    annotation has the type of its default. ``without``: parameters that are left out. Raises
    TypeError for a type that no setting has.
    """
    return {setting.name: setting for setting in _declarations(of, tuple(without))}


@cache  # source does not change within a process
def _declarations(of: Callable[..., object], without: tuple[str, ...]) -> tuple[Declared, ...]:
    hints = get_type_hints(of, include_extras=True)
    return tuple(
        _declared(of, name, hints.get(name, type(parameter.default)), parameter.default)
        for name, parameter in signature(of).parameters.items()
        if name not in without
    )


def check_real(**values: object) -> None:
    """Raise ValueError for the first value, by its name, that is not a number."""
    for name, value in values.items():
        if isinstance(value, bool | str) or not hasattr(value, "__float__"):
            raise ValueError(f"expected a number for {name}, got {value!r}")


def check_declared(instance: object, *, without: Iterable[str] = ()) -> None:
    """Raise ValueError for the first field of a dataclass instance that its declaration refuses.

    Fields without a ``Setting`` and without choices are not looked at, nor are those in
    ``without``.
    """
    cls: Callable[..., object] = type(instance)
    skipped = tuple(without)
    for name, field_declared in _fields(cls).items():
        if name not in skipped:
            field_declared.check(getattr(instance, name))


def values_of(instance: object) -> dict[str, tuple[Setting, Any]]:
    """(declaration, value) of the declared fields of a dataclass instance, by the user's names."""
    cls: Callable[..., object] = type(instance)
    return {d.name: (d.setting, getattr(instance, field)) for field, d in _fields(cls).items()}


@cache  # source does not change within a process
def _fields(of: Callable[..., object]) -> dict[str, Declared]:
    """The fields of a dataclass that have a ``Setting`` or choices, by their own names."""
    fields = {}
    for name, hint in get_type_hints(of, include_extras=True).items():
        plain, _, setting = _parts(hint)
        if setting or get_origin(plain) is Literal:
            fields[name] = _declared(of, name, hint, REQUIRED)
    return fields


def unknown(
    kind: str, name: str, known: Mapping[str, Declared], *, also: Collection[str] = ()
) -> ValueError:
    """The error for a name that no declaration has, with a suggestion.

    ``also``: other arguments of the same place.
    """
    return ValueError(f"unknown {kind} {name!r}{suggestion(name, known, also=also)}")


def suggestion(name: str, known: Mapping[str, Declared], *, also: Collection[str] = ()) -> str:
    """The end of an error message that suggests a name, or nothing.

    It is the name with this alias, else the one for a name of another library, else the nearest
    one. ``also``: other arguments of the same place.
    """
    word = name.replace("-", "_").lower()
    for candidate in known.values():
        if word in candidate.setting.aliases:
            return f"; did you mean {candidate.name!r}?"
    return in_our_words(word, {*known, *also}) or did_you_mean(word, [*known, *also])


def agreed(declarations: Iterable[tuple[str, Mapping[str, Declared]]]) -> dict[str, Declared]:
    """The declarations of several places as one, by name. Raises ValueError if two differ.

    ``declarations``: the name of each place, with what it declares.
    """
    merged: dict[str, tuple[str, Declared]] = {}
    for place, settings in declarations:
        for name, setting in settings.items():
            first_place, before = merged.get(name, (place, setting))
            merged[name] = first_place, same(before, setting, (first_place, place))
    return {name: setting for name, (_, setting) in merged.items()}


def same(first: Declared, second: Declared, where: tuple[str, str]) -> Declared:
    """Two declarations of one name as one, with the first sentence that is not empty.

    ``where``: their places. Raises ValueError if they accept different values; one without a
    ``Setting`` gets the other's range.
    """
    one_is_empty = Setting() in (first.setting, second.setting)
    if first.accepts != second.accepts and not (
        one_is_empty and first.accepts[:2] == second.accepts[:2]
    ):
        ranges = [f"{each.kind.__name__} {each.range}".strip() for each in (first, second)]
        raise ValueError(
            f"setting {first.name!r} has two different declarations: {ranges[0]} by {where[0]}, "
            f"{ranges[1]} by {where[1]}; give both one type and range, or one of them another name"
        )
    keep = first.setting.meaning or second.setting == Setting()
    return first if keep else replace(first, setting=second.setting)


def _declared(of: Callable[..., object], name: str, hint: Any, default: object) -> Declared:
    """The declaration of one parameter. Raises TypeError for a type that no setting has."""
    plain, optional, setting = _parts(hint)
    setting = setting or Setting()
    choices = get_args(plain) if get_origin(plain) is Literal else setting.choices
    kind = type(next(iter(choices))) if choices else plain
    if kind not in (bool, int, float, str):
        raise TypeError(
            f"{name!r} of {getattr(of, '__module__', '')}.{getattr(of, '__name__', of)} is "
            f"declared as {plain!r}: a setting is a bool, int, float, str or a Literal of strings, "
            "or one of them | None"
        )
    return Declared(
        name=setting.name or name,
        kind=kind,
        choices=choices,
        optional=optional,
        default=default,
        setting=setting,
    )


def _parts(hint: Any) -> tuple[Any, bool, Setting | None]:
    """A hint's type, whether None is one of its values, and its first ``Setting`` or None.

    ``Annotated`` and ``| None`` may be nested in any order.
    """
    optional, setting = False, None
    while True:
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
            setting = setting or next((note for note in notes if isinstance(note, Setting)), None)
        elif get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint):
            rest = [option for option in get_args(hint) if option is not type(None)]
            optional, hint = True, Union[tuple(rest)]  # noqa: UP007, a union that is computed
        else:
            return hint, optional, setting


def _convert(of: Declared, value: object) -> object:
    """A raw value in the type of the declaration. Raises ValueError for one that has another."""
    if of.choices or (value is None and of.optional):
        return value
    if of.kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() not in words:
            raise ValueError(f"expected true or false for {of.name}, got {value!r}")
        return words[str(value).lower()]
    if of.kind is str:
        return str(value)
    try:
        if isinstance(value, bool) or (
            of.kind is int and isinstance(value, float) and value != int(value)
        ):
            raise ValueError
        return of.kind(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"expected a number ({of.kind.__name__}) for {of.name}, got {value!r}"
        ) from None
