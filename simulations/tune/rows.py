"""Which rows the trials train on and which they are compared on: ``--on``, and what that costs in privacy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HOLDOUT = 0.1
"""The share of the rows that trials are compared on, unless -c holdout=... says otherwise."""

HELD_OUT = "held-out"
EXPECTED = (
    "say with --on which rows the trials use: data:NAME or data:PATH (public rows that you name, costs no privacy), "
    "synthetic (public inputs with labels of a random teacher, costs no privacy), or held-out (a share of the private "
    "training rows, costs privacy)"
)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """``words``: what they are. ``settings``: those of each trial. ``private``: whether they are the training rows."""

    name: str
    words: str
    private: bool
    settings: Mapping[str, Any] = field(default_factory=dict)


def rows_of(on: str | None) -> Rows:
    """The rows that ``--on`` names. Raises ValueError for none, or another word."""
    if on == HELD_OUT:
        return Rows(
            name=on, words="held-out rows of the private training split", private=True, settings={"holdout": HOLDOUT}
        )
    kind, _, name = (on or "").partition(":")
    if on == "synthetic" or (kind == "data" and name):
        words = "synthetic inputs with labels of a random teacher" if on == "synthetic" else f"public rows of {name}"
        return Rows(name=str(on), words=words, private=False, settings={"holdout": HOLDOUT, "public_rows": on})
    raise ValueError(EXPECTED if on is None else f"expected --on held-out, data:NAME|PATH or synthetic, got {on!r}")
