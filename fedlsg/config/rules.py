"""Rules: each setting declares what it needs of other settings, and one checker reads that.

    Setting(
        "mu of FedProx",
        rules=(needs("local_steps>1", "it changes local steps from the second one on"),),
    )
    Setting(
        "Concentration of partition=dirichlet.",
        rules=(idle_unless("partition=dirichlet"),),
    )

A condition is a text about facts, which are settings and what follows from them, by name:

    name, not name                  the fact is there (not None, False, 0 or empty), or is not
    name=a|b, name!=a               it has one of these values, or another one
    name>1, name>=1, name<other     it is that large; the right side may name another fact
    A and B, A or B                 "and" binds more strongly

A condition on a fact that is not known yet is neither true nor false (None), and breaks no rule. A
rule on a fact that does not exist is refused (``check_names``).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import ge, gt, le, lt
from string import Formatter
from typing import Any

from fedlsg.config.choices import choose

Words = Mapping[str, str]
"""Words for a reader by the name of a fact that is not a setting; with {facts}."""

ATOM = re.compile(r"(not )?([\w.]+)\s*(!=|>=|<=|=|>|<)?\s*(.*)")
COMPARE = {">": gt, ">=": ge, "<": lt, "<=": le}

Facts = Mapping[str, Any]
"""Values of settings, and of what follows from them, by name."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """If the condition ``of`` is true, the condition ``needs`` must be true.

    of: the setting or value that the rule is about, and further conditions.
    needs: the condition that must be true.
    why: the reason and what to do, with {facts}.
    idle: whether breaking it only leaves the setting without effect. It is then refused if a user
        gave the setting, and accepted in a preset.
    """

    of: str
    needs: str
    why: str = ""
    idle: bool = False

    @property
    def subject(self) -> str:
        """The setting or value that the rule is about: the first part of ``of``."""
        return self.of.split(" and ")[0]

    @property
    def name(self) -> str:
        """The setting that the rule is about."""
        return _parse(self.subject)[0]

    @property
    def facts(self) -> list[str]:
        """The facts that its conditions and its reason name."""
        conditions = f"{self.of} and {self.needs}".replace(" or ", " and ")
        named = []
        for atom in conditions.split(" and "):
            name, sign, right = _parse(atom)
            named += [name, right] if sign in COMPARE and right.isidentifier() else [name]
        return named + [field for _, field, _, _ in Formatter().parse(self.why) if field]

    def broken(self, facts: Facts) -> bool:
        """Whether the facts break the rule; unknown facts do not."""
        return bool(holds(self.of, facts)) and holds(self.needs, facts) is False

    def message(self, facts: Facts, words: Words) -> str:
        """The error message: what is wrong, why, and what to do."""
        why = self.why or (
            "otherwise it has no effect: leave it out" if self.idle else "leave one of them out"
        )
        return f"{_now(self.subject, facts, words)} {self.wants(facts, words)}: {_fill(why, facts)}"

    def wants(self, facts: Facts, words: Words) -> str:
        """``needs x = a or b, got x=c``, or ``does not go with y=d``, for facts that break the
        rule.
        """
        atoms = [_parse(atom) for atom in self.needs.replace(" or ", " and ").split(" and ")]
        against = [name for name, sign, _ in atoms if sign in ("not", "!=")]
        if len(against) == len(atoms):
            return f"does not go with {' and '.join(_now(name, facts, words) for name in against)}"
        known = dict.fromkeys(
            name for name, sign, _ in atoms if sign and facts.get(name) is not None
        )
        got = ", ".join(_now(name, facts, words) for name in known)
        return f"needs {_fill(spell(self.needs, words), facts)}" + (f", got {got}" if got else "")


def needs(condition: str, why: str = "", *, of: str = "") -> Rule:
    """A rule of a setting; ``of``: of one of its values alone, such as "trust=secure"."""
    return Rule(of=of, needs=condition, why=why)


def idle_unless(condition: str, why: str = "", *, of: str = "") -> Rule:
    """A rule for a setting that has no effect otherwise."""
    return Rule(of=of, needs=condition, why=why, idle=True)


def check_names(rules: Iterable[Rule], known: Mapping[str, object]) -> None:
    """Raise ValueError for a rule on a fact that does not exist: it would never be broken."""
    for rule in rules:
        for name in rule.facts:
            choose(f"fact of the rule {rule.of!r} needs {rule.needs!r}:", name, known)


def check_rules(rules: Iterable[Rule], facts: Facts, words: Words) -> None:
    """Raise ValueError for the first broken rule that is not ``idle``."""
    for rule in rules:
        if not rule.idle and rule.broken(facts):
            raise ValueError(rule.message(facts, words))


def holds(condition: str, facts: Facts) -> bool | None:
    """Whether a condition is true; None if that is not known."""
    options = [
        _all(holds_atom(atom, facts) for atom in option.split(" and "))
        for option in condition.split(" or ")
    ]
    if True in options:
        return True
    return None if None in options else False


def holds_atom(atom: str, facts: Facts) -> bool | None:
    """``holds`` for a condition without "and" and "or"."""
    name, sign, right = _parse(atom)
    if name not in facts:
        return None
    value = facts[name]
    if sign in ("", "not"):
        return bool(value) == (sign == "")
    if sign in ("=", "!="):
        return (text_of(value) in right.split("|")) == (sign == "=")
    # the right side is the name of a fact, or a number
    other = facts.get(right) if right.isidentifier() else float(right)
    return None if value is None or other is None else bool(COMPARE[sign](value, other))


def example(condition: str) -> dict[str, Any]:
    """Facts that make the first option of a condition true: the first values that it names."""
    facts: dict[str, Any] = {}
    for atom in condition.split(" or ")[0].split(" and "):
        name, sign, right = _parse(atom)
        if sign == "=":
            facts[name] = right.split("|")[0]
        elif sign == ">":
            facts[name] = float(right) + 1
        else:
            facts[name] = sign == ""
    return facts


def spell(condition: str, words: Words) -> str:
    """A condition in words for a reader."""
    options = []
    for option in condition.split(" or "):
        options.append(" and ".join(_spell(atom, words) for atom in option.split(" and ")))
    return " or ".join(options)


def text_of(value: object) -> str:
    """A value as a user writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache  # conditions are constants of the source
def _parse(atom: str) -> tuple[str, str, str]:
    """Name, sign ("", "not" or a comparison) and right side of a condition without "and"."""
    match = ATOM.fullmatch(atom.strip())
    assert match is not None, atom
    negation, name, sign, right = match.groups()
    return name, "not" if negation else sign or "", right


def _all(parts: Iterable[bool | None]) -> bool | None:
    """Whether all are true; None if that is not known."""
    values = list(parts)
    if False in values:
        return False
    return None if None in values else True


def _spell(atom: str, words: Words) -> str:
    """A condition without "and" and "or" in words."""
    name, sign, right = _parse(atom)
    word = words.get(name, name)
    if sign in ("", "not"):
        return f"{'no ' if sign else ''}{word}"
    values = _list(right.split("|"))
    return f"{word}{sign}{values}" if sign in ("=", "!=") else f"{word} {sign} {values}"


def _list(values: Sequence[str]) -> str:
    """ "a", "a or b", "a, b or c"."""
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} or {values[-1]}"


def _now(subject: str, facts: Facts, words: Words) -> str:
    """The fact that a condition begins with, and its value: "x=c"."""
    name = _parse(subject)[0]
    if name in words:
        return _fill(words[name], facts)
    return f"{name}={text_of(facts[name])}" if name in facts else name


class _Known(dict[str, Any]):
    """Values by name; the name itself for a fact that is not known."""

    def __missing__(self, name: str) -> str:
        return name


def _fill(text: str, facts: Facts) -> str:
    """A text with the values of its {facts}."""
    return text.format_map(_Known({name: text_of(value) for name, value in facts.items()}))
