"""What does not go together: each setting declares what it needs, and one checker reads that.

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

A condition on a fact that is not known yet is neither true nor false: then nothing is said. One on
a fact that does not exist is refused (``check_names``).
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

ATOM = re.compile(r"(not )?([\w.]+)\s*(!=|>=|<=|=|>|<)?\s*(.*)")
COMPARE = {">": gt, ">=": ge, "<": lt, "<=": le}

Facts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Where ``of`` is true, ``needs`` has to be; ``why`` gives the reason and what to do, with
    {facts}.

    ``idle``: otherwise the setting only has no effect: it is refused where a user gave it; a preset
    may have it.
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
        """Whether the facts break it; what is not known breaks nothing."""
        return bool(holds(self.of, facts)) and holds(self.needs, facts) is False

    def message(self, facts: Facts, words: Words) -> str:
        """What is wrong, why, and what to do. ``words``: names of facts that are not settings."""
        why = self.why or (
            "otherwise it has no effect: leave it out" if self.idle else "leave one of them out"
        )
        return f"{_now(self.subject, facts, words)} {self.wants(facts, words)}: {_fill(why, facts)}"

    def wants(self, facts: Facts, words: Words) -> str:
        """``needs x = a or b, got x=c``, or ``does not go with y=d``, for values that break the
        rule.
        """
        atoms = [
            _parse(atom) for option in self.needs.split(" or ") for atom in option.split(" and ")
        ]
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
    """Raise ValueError for the first broken rule; rules of what only has no effect are left out."""
    for rule in rules:
        if not rule.idle and rule.broken(facts):
            raise ValueError(rule.message(facts, words))


def holds(condition: str, facts: Facts) -> bool | None:
    """Whether a condition is true; None if that is not known."""
    options = [
        _all(holds_atom(atom, facts) for atom in option.split(" and "))
        for option in condition.split(" or ")
    ]
    return True if True in options else None if None in options else False


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
    other = (
        facts.get(right) if right in facts else float(right) if not right.isidentifier() else None
    )
    return None if value is None or other is None else bool(COMPARE[sign](value, other))


def example(condition: str) -> dict[str, Any]:
    """Facts that make a condition without comparisons true: its first values."""
    found: dict[str, Any] = {}
    for atom in condition.split(" or ")[0].split(" and "):
        name, sign, right = _parse(atom)
        found[name] = (
            right.split("|")[0] if sign == "=" else float(right) + 1 if sign == ">" else sign == ""
        )
    return found


def spell(condition: str, words: Words) -> str:
    """A condition for a reader."""
    return " or ".join(
        " and ".join(_spell(atom, words) for atom in o.split(" and "))
        for o in condition.split(" or ")
    )


def text_of(value: object) -> str:
    """A value as a user writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache  # of the conditions that settings declare
def _parse(atom: str) -> tuple[str, str, str]:
    """Name, sign ("", "not" or a comparison) and right side."""
    found = ATOM.fullmatch(atom.strip())
    assert found is not None, atom
    negated, name, sign, right = found.groups()
    return name, "not" if negated else sign or "", right


def _all(parts: Iterable[bool | None]) -> bool | None:
    found = list(parts)
    return False if False in found else None if None in found else True


def _spell(atom: str, words: Words) -> str:
    name, sign, right = _parse(atom)
    known = words.get(name, name)
    if sign in ("", "not"):
        return f"{'no ' if sign else ''}{known}"
    values = _list(right.split("|"))
    return f"{known}{sign}{values}" if sign in ("=", "!=") else f"{known} {sign} {values}"


def _list(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} or {values[-1]}"


def _now(subject: str, facts: Facts, words: Words) -> str:
    """A fact with the value that it has."""
    name = _parse(subject)[0]
    if name in words:
        return _fill(words[name], facts)
    return f"{name}={text_of(facts[name])}" if name in facts else name


class _Known(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return name


def _fill(text: str, facts: Facts) -> str:
    return text.format_map(_Known({name: text_of(value) for name, value in facts.items()}))
