"""Rows of the trials: ``--on``, which ones they train on and are compared on, and what that costs in privacy."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedlsg import user_code
from simulations import workloads
from simulations.settings.settings import Settings
from simulations.workloads import Options, public_rows
from simulations.workloads.public_data import public_data

HOLDOUT = 0.1
"""The share of the rows that trials are compared on, unless -c holdout=... says otherwise."""

HELD_OUT, TEST = "held-out", "test"
EXPECTED = (
    "say with --on which rows the trials use: data:NAME or data:PATH (public rows that you name, costs no privacy), "
    "synthetic (public inputs with labels of a random teacher, costs no privacy), or held-out (a share of the private "
    "training rows, costs privacy)"
)
REFUSED = (
    "--on test: no setting is chosen on the test split, because its accuracies would then be too high: --on held-out, "
    "data:NAME|PATH or synthetic"
)
FREE = "Choosing costs no privacy: the trials use {rows} alone. They train on one part, and are compared on the rest."
COSTLY = (
    "CHOOSING COSTS PRIVACY: each trial is a release about the same private rows, and accuracies of held-out rows have "
    "no noise. The cost is printed at the end."
)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """``words``: what they are. ``settings``: those of each trial. ``private``: whether they are the training rows."""

    words: str
    private: bool
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cost(self) -> str:
        """Whether choosing on these rows costs privacy, in a sentence."""
        return COSTLY if self.private else FREE.format(rows=self.words)


def rows_of(on: str | None) -> Rows:
    """The rows that ``--on`` names. Raises ValueError for none, the test split, or another word."""
    if on == HELD_OUT:
        return Rows(words="held-out rows of the private training split", private=True, settings={"holdout": HOLDOUT})
    if on == TEST:
        raise ValueError(REFUSED)
    kind, _, name = (on or "").partition(":")
    if on == "synthetic" or (kind == "data" and name):
        words = "synthetic inputs with labels of a random teacher" if on == "synthetic" else f"public rows of {name}"
        return Rows(words=words, private=False, settings={"holdout": HOLDOUT, "public_rows": on})
    raise ValueError(EXPECTED if on is None else f"expected --on held-out, data:NAME|PATH or synthetic, got {on!r}")


def as_many_rows(settings: Settings) -> dict[str, int]:
    """The setting that makes public rows stand for as many as the private training split has, a public number.

    Nothing where that split is not at hand. Where it is, its rows are read to refuse public rows that are among them.
    Raises ValueError for those.
    """
    data_dir = None if settings.data_dir is None else Path(settings.data_dir).expanduser().resolve()
    names = {f.name: getattr(settings, f.name) for f in fields(Options) if f.name not in ("train_rows", "holdout")}
    options, name = Options(**names), public_rows.locate(settings.public_rows)
    try:
        private = workloads.load(settings.workload, data_dir=data_dir, options=options)
    except OSError:
        return {}
    if name is not None and name != public_rows.SYNTHETIC:
        public_data(
            name.removeprefix(user_code.DATA), private, data_dir=data_dir, cache_dir=None, options=options,
            setting="public_rows",
        )  # fmt: skip
    return {"train_rows": len(private.train)}
