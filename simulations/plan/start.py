"""Files and folders that settings name: the public weights that a run starts from, and paths from the root.

The digest of weights is among the settings, and others than public ones are refused. A run is resumed, and has workers,
in other folders.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedlsg.user_code import DATA, shown
from simulations import workloads
from simulations.callbacks.named import absolute_names
from simulations.models.pretrained import FOLDER_FILE, digest_of, facts_of
from simulations.settings.settings import Settings
from simulations.workloads.features.encoders import SCATTERING, written

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


def from_root(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, with absolute paths of weights and public data that are in the working folder.

    Other names stay: of a built-in encoder or data set, of a repository on the hub, of a file that is not here.
    Not for a deployed client: what it finds at a name of the server's would be known by it.
    """
    found = dict(given)
    weights, features = (str(found.get(name, RANDOM)) for name in ("pretrained", "features"))
    if weights != RANDOM and _holds_weights(Path(weights).expanduser()):
        found["pretrained"] = str(Path(weights).expanduser().resolve())
    if features not in (RANDOM, SCATTERING) and written(features) is not None:
        found["features"] = str(Path(features).expanduser().resolve())
    for name in ("source", "public_rows"):
        value = str(found.get(name, ""))
        path = value.removeprefix(DATA)
        if path not in ("", value, *workloads.names()) and Path(path).expanduser().exists():
            found[name] = f"{DATA}{Path(path).expanduser().resolve()}"
    own = workloads.own(str(found.get("workload", "")))
    if own is not None and own.has_relative_paths:
        found["data_root"] = str(Path(str(found.get("data_root") or ".")).expanduser().resolve())
    trace = Path(str(found.get("availability", ""))).expanduser()
    if trace.is_file():
        found["availability"] = str(trace.resolve())
    if found.get("callbacks"):
        found["callbacks"] = absolute_names(found["callbacks"])
    return found


def _holds_weights(place: Path) -> bool:
    return place.is_file() or (place / FOLDER_FILE).is_file()
