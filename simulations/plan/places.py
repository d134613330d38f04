"""Files and folders that settings name, from the root: a run is resumed, and has workers, in other folders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlsg.user_code import DATA
from simulations import workloads
from simulations.callbacks.named import absolute_names
from simulations.models.pretrained import FOLDER_FILE
from simulations.plan.start import RANDOM
from simulations.workloads.features.encoders import SCATTERING, written


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
