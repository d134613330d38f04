"""Look a name up in a table of choices, and suggest the nearest one for a misspelt name."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")

MEANINGS = {
    "gpu": "cuda",
    "nvidia": "cuda",
    "noniid": "dirichlet",
    "heterogeneous": "dirichlet",
    "skewed": "dirichlet",
    "uniform": "iid",
    "homogeneous": "iid",
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "8bit": "int8",
    "central": "server",
    "local": "client",
    "sample": "example",
    "record": "example",
    "user": "client",
    "shuffled": "shuffle",
}
"""Words that people use for a value, without hyphens, by the value that they mean."""


def choose(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return ``table[name]``.

    Raises:
        ValueError: unknown name; the message lists the known names and the nearest one.
    """
    if name in table:
        return table[name]
    near = did_you_mean(name, table) or ","
    raise ValueError(f"unknown {kind} {name!r}{near} expected one of {', '.join(table)}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known word, or nothing."""
    match = nearest(word, known)
    return f"; did you mean {match!r}?" if match else ""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word with the meaning of a word (``MEANINGS``), else the one with similar letters.

    Capitals and hyphens do not matter. None if there is no such word.
    """
    by_plain = {plain(name): name for name in known}
    plain_word = plain(word)
    meaning = MEANINGS.get(plain_word)
    if meaning is not None:  # similar letters can mean the opposite: iid and noniid
        return by_plain.get(meaning)
    match = get_close_matches(plain_word, by_plain, n=1)
    return by_plain[match[0]] if match else None


def plain(word: str) -> str:
    """A word without capitals, hyphens and underscores."""
    return word.lower().replace("-", "").replace("_", "")
