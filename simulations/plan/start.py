"""The public weights that a run starts from: their digest among its settings; others than public ones are refused."""

from contextlib import suppress
from dataclasses import replace

from fedlsg.user_code import DATA, shown
from simulations.models.pretrained import digest_of, facts_of
from simulations.settings.settings import Settings

RANDOM = "none"
"""``pretrained`` of a text model whose own weights are left out."""


def with_digest(settings: Settings) -> Settings:
    """The settings with the digest of the file that training starts from, if there is one.

    Raises ValueError for weights, to start from or to make features, that fedlsg trained on the rows of the same
    workload, by a run or as public data: the epsilon of this run would leave that out.
    """
    own = {row_name(settings.workload, settings.dataset), f"{DATA}{shown(settings.workload)}"}
    for setting, source in starts_of(settings).items():
        if own & rows_behind(source):
            raise ValueError(
                f"{setting}={getattr(settings, setting)} was trained on the rows of {shown(settings.workload)}, which "
                "the epsilon of this run would not count: take weights of public data, or resume the run that made "
                "these"
            )
    if settings.pretrained in (None, RANDOM) or settings.pretrained_sha256 is not None:
        return settings
    with suppress(OSError, ImportError):  # the model's builder says what is missing, or that the workload takes none
        return replace(settings, pretrained_sha256=digest_of(str(settings.pretrained)))
    return settings


def starts_of(settings: Settings) -> dict[str, str]:
    """Where the public weights are that a run starts from, or that make its features: paths or names, by setting."""
    given = {name: getattr(settings, name) for name in ("pretrained", "features")}
    return {name: str(value) for name, value in given.items() if value not in (None, RANDOM)}


def rows_behind(source: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """Names of the rows that the weights at ``source``, or those that they come from, have seen, by what is on record.

    ``seen``: weights that were looked at on the way, since records may name one another.
    """
    facts, seen = facts_of(source), seen | {source}
    options = facts.get("options", {})
    read = {*facts.get("public_data", []), *facts.get("rows_behind", [])}
    if "pretrained_on" in facts:
        read.add(str(facts["pretrained_on"].get("source")))
    if "method" in facts:
        read.add(row_name(str(facts.get("workload")), options.get("dataset")))
    earlier = {str(options.get(setting)) for setting in ("pretrained", "features")} - {RANDOM}
    return read.union(*(rows_behind(one, seen) for one in earlier - seen))


def row_name(workload: str, dataset: str | None) -> str:
    """The name of a workload's training rows in records."""
    return f"{DATA}{shown(workload)}" + (f" {dataset}" if dataset else "")
