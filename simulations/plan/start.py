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
    for setting in ("pretrained", "features"):
        given = getattr(settings, setting)
        if given not in (None, RANDOM) and _trained_on_rows_of(settings, str(given)):
            raise ValueError(
                f"{setting}={given} was trained on the rows of {shown(settings.workload)}, which the epsilon of this "
                "run would not count: take weights of public data, or resume the run that made these"
            )
    if settings.pretrained in (None, RANDOM) or settings.pretrained_sha256 is not None:
        return settings
    with suppress(OSError, ImportError):  # the model's builder says what is missing, or that the workload takes none
        return replace(settings, pretrained_sha256=digest_of(str(settings.pretrained)))
    return settings


def _trained_on_rows_of(settings: Settings, source: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether the weights at ``source``, or those that they come from, have seen the rows, by what is on record.

    ``seen``: weights that were looked at on the way, since records may name one another.
    """
    facts, name = facts_of(source), shown(settings.workload)
    options = facts.get("options", {})
    rows = facts.get("workload") == name and options.get("dataset") == settings.dataset
    read = [*facts.get("public_data", []), facts.get("pretrained_on", {}).get("source")]
    if ("method" in facts and rows) or f"{DATA}{name}" in read:
        return True
    earlier = (options.get(setting) for setting in ("pretrained", "features"))
    seen |= {source}
    return any(_trained_on_rows_of(settings, str(one), seen) for one in earlier if one not in (None, RANDOM, *seen))
