"""What a user may set: one sentence, a unit and a range, declared where the value is used.

    Rank = Annotated[int, Setting("Rank r of the carriers.", at_least=1)]
    def recipe(*, rank: Rank = 4, ...) -> Method: ...
    declared(recipe)["rank"].parse("8")        8; ValueError "expected rank=0 >= 1" for "0"

Options of the command line, checks, error messages and the reference page are made from these
declarations.
``rules``: what does not go together. ``units``, ``mechanisms`` and ``selection``: the objects that
the settings unit, mechanism and selection name, a new one is one object there. ``choices``: words
for values. ``directions``: whether more is better of a metric. Nothing here imports torch.
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
"""The default of what has none."""


@dataclass(frozen=True)
class Setting:
    """``meaning`` is one sentence; ``why`` ends the message for a value out of range, where the
    range needs a reason.

    ``at_least`` and ``at_most`` are within the range, ``above`` and ``below`` just outside of it.
    ``aliases`` are other words for the name, which suggestions know and nothing accepts. ``name``
    is what a user calls it, where the parameter is called otherwise. ``fallback`` is used where
    neither the user nor the workload gives a value. The default of a new setting is what runs did
    before it existed: an unfinished one goes on with it.
    ``rules``: what the setting needs, and does not go with.
    ``choices``: the objects that it names, by name, with rules of their own.
    ``others``: what may be given next to these, in words.
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
        """The range in signs around a word: ``0 < word <= 1``, ``word >= 1``; the word alone
        without bounds.
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
    """One parameter of a callable, or one field of a dataclass, as its declaration says.

    ``kind`` is bool, int, float or str; a ``Literal``, and the name of an object, is a str with
    ``choices``. ``default`` is ``REQUIRED`` where there is none; ``optional`` says whether None is
    a value.
    """

    name: str
    kind: type
    choices: Collection[Any] = ()
    optional: bool = False
    default: Any = REQUIRED
    setting: Setting = Setting()

    @property
    def accepts(self) -> tuple[object, ...]:
        """What may be given, to compare two declarations of one name."""
        bounds = self.setting.at_least, self.setting.above, self.setting.at_most, self.setting.below
        return self.kind, tuple(self.choices), bounds

    @property
    def range(self) -> str:
        """For a reader: ``a, b or c``, ``true or false``, ``0 < x <= 1``; nothing where anything
        goes.
        """
        if self.choices:
            *first, last = (*map(str, self.choices), *filter(None, [self.setting.others]))
            return f"{', '.join(first)} or {last}" if first else last
        if self.kind is bool:
            return "true or false"
        found = self.setting.around("x")
        return found if found != "x" else ""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What the setting needs, each rule with the name of the setting or of one of its
        values.
        """
        named = (rule for one in self.setting.choices.values() for rule in one.rules)
        return tuple(
            replace(rule, of=rule.of or self.name) for rule in (*self.setting.rules, *named)
        )

    def parse(self, value: object) -> Any:
        """The value of a raw one, which may be a string of a command line.

        Raises ValueError, naming the setting, for a wrong type and for a value outside of choices
        or range.
        """
        parsed = _convert(self, value)
        self.check(parsed)
        return parsed

    def check(self, value: object) -> None:
        """Raise ValueError, naming setting, value and range, unless the value is one of this
        setting.
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
    """What a callable or a dataclass declares, by the name that a user gives, in order, ``without``
    some parameters.

    A parameter without a ``Setting`` is a setting without sentence and range, one without
    annotation has the type of its default. Raises TypeError for a parameter whose type no setting
    has.
    """
    return {one.name: one for one in _declarations(of, tuple(without))}


@cache  # of a class's source: for a process
def _declarations(of: Callable[..., object], without: tuple[str, ...]) -> tuple[Declared, ...]:
    hints = get_type_hints(of, include_extras=True)
    return tuple(
        _declared(of, name, hints.get(name, type(parameter.default)), parameter.default)
        for name, parameter in signature(of).parameters.items()
        if name not in without
    )


def check_real(**given: object) -> None:
    """Raise ValueError for the first value, by its name, that is not a number."""
    for name, value in given.items():
        if isinstance(value, bool | str) or not hasattr(value, "__float__"):
            raise ValueError(f"expected a number for {name}, got {value!r}")


def check_declared(instance: object, *, without: Iterable[str] = ()) -> None:
    """Raise ValueError for the first field of a dataclass instance that its own declaration does
    not accept.

    Only fields that are declared with a ``Setting``, or have choices, are looked at, ``without``
    some of them.
    """
    cls: Callable[..., object] = type(instance)
    for name, one in _fields(cls).items():
        if name not in tuple(without):
            one.check(getattr(instance, name))


def values_of(instance: object) -> dict[str, tuple[Setting, Any]]:
    """The declared fields of a dataclass instance, by the name that a user gives: declaration and
    value.
    """
    cls: Callable[..., object] = type(instance)
    return {one.name: (one.setting, getattr(instance, name)) for name, one in _fields(cls).items()}


@cache  # of a class's source: for a process
def _fields(of: Callable[..., object]) -> dict[str, Declared]:
    hints = {
        name: (hint, _parts(hint)) for name, hint in get_type_hints(of, include_extras=True).items()
    }
    return {
        name: _declared(of, name, hint, REQUIRED)
        for name, (hint, (plain, _, setting)) in hints.items()
        if setting or get_origin(plain) is Literal
    }


def unknown(
    kind: str, name: str, known: Mapping[str, Declared], *, also: Collection[str] = ()
) -> ValueError:
    """The error for a name that no declaration has: with its nearest name, abbreviations
    included. ``also``: other arguments of the same place.
    """
    return ValueError(f"unknown {kind} {name!r}{suggestion(name, known, also=also)}")


def suggestion(name: str, known: Mapping[str, Declared], *, also: Collection[str] = ()) -> str:
    """The end of an error message: the name that has the word as an alias, or that another library
    calls so.

    Else the nearest one, or nothing. ``also``: other arguments of the same place.
    """
    word = name.replace("-", "_").lower()
    meant = next((one.name for one in known.values() if word in one.setting.aliases), None)
    return (
        f"; did you mean {meant!r}?"
        if meant
        else in_our_words(word, {*known, *also}) or did_you_mean(word, [*known, *also])
    )


def agreed(declarations: Iterable[tuple[str, Mapping[str, Declared]]]) -> dict[str, Declared]:
    """What several places declare, by name: each place with its declarations. Raises ValueError if
    two differ.
    """
    found: dict[str, tuple[str, Declared]] = {}
    for where, own in declarations:
        for name, one in own.items():
            first, before = found.get(name, (where, one))
            found[name] = first, same(before, one, (first, where))
    return {name: one for name, (_, one) in found.items()}


def same(first: Declared, second: Declared, where: tuple[str, str]) -> Declared:
    """Two declarations of one name as one, its sentence the first that there is. Raises ValueError
    if they differ.
    """
    # one that says a type alone takes the other's range
    silent = Setting() in (first.setting, second.setting)
    if first.accepts != second.accepts and not (silent and first.accepts[:2] == second.accepts[:2]):
        said = [f"{one.kind.__name__} {one.range}".strip() for one in (first, second)]
        raise ValueError(
            f"setting {first.name!r} has two different declarations: {said[0]} by {where[0]}, "
            f"{said[1]} by {where[1]}; give both one type and range, or one of them another name"
        )
    keep = first.setting.meaning or second.setting == Setting()
    return first if keep else replace(first, setting=second.setting)


def _declared(of: Callable[..., object], name: str, hint: Any, default: object) -> Declared:
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
    known = setting.name or name
    return Declared(
        name=known, kind=kind, choices=choices, optional=optional, default=default, setting=setting
    )


def _parts(hint: Any) -> tuple[Any, bool, Setting | None]:
    """Type, whether None is one of its values, and the ``Setting``, in whatever order they are
    wrapped.
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
