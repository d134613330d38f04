"""Public data that settings name: weights to start from, and the source of probed carriers.

The digest of weights becomes a setting, and weights that are not public are refused. Paths become
absolute, because a run is resumed, and has workers, in other folders. The source of a probe is
found when a process first draws: only some processes do.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg import user_code
from fedlsg.carriers.probe import ProbeSource
from fedlsg.carriers.probe.carrier import Draw, on_device_of
from fedlsg.randomness import public_generator
from fedlsg.simulations import workloads
from fedlsg.simulations.models.pretrained import FOLDER_FILE, digest_of, facts_of
from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.settings.settings import Settings, callbacks_with, from_values, values_of
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads import LoadedWorkload, Options
from fedlsg.simulations.workloads.features.encoders import BUILT_IN, written
from fedlsg.simulations.workloads.public_data import NOT_DATA_SETS, forms, probe_source
from fedlsg.user_code import DATA, shown

WAYS = (
    "start_from=RUN goes on from a run, with its ledger; fresh_data=True says that these data are "
    "others; or take weights of public data"
)
"""What to do about weights that were trained on the rows of the run."""
RANDOM = "none"
"""The value of ``pretrained`` for a text model with random weights."""
TRIED = 2
"""Inputs that are drawn before a run, to check that the model takes them."""
DIGESTED = 256
"""Rows of public data in a digest."""


def with_digest(settings: Settings) -> Settings:
    """The settings with the digest of the file that training starts from, if there is one.

    Raises ValueError for weights that fedlsg trained on the rows of the same workload, by a run or
    as public data: the epsilon of this run would not cover that. They are accepted if their ledger
    goes on here, or if the data are others. Weights are those to start from, and those of features.
    """
    rows_here = {row_name(settings.workload, settings.dataset), f"{DATA}{shown(settings.workload)}"}
    start = settings.start_from
    if start is not None:
        if settings.pretrained not in (None, start):
            raise ValueError(
                f"start_from={start} gives the weights to start from: leave pretrained="
                f"{settings.pretrained} out"
            )
        refuse_unfinished(str(start))
        settings = replace(settings, pretrained=start)
    for setting, source in starts_of(settings).items():
        counted = settings.fresh_data or (setting, source) == ("pretrained", start)
        if rows_here & rows_behind(source) and not counted:
            raise ValueError(
                f"{setting}={getattr(settings, setting)} was trained on the rows of "
                f"{shown(settings.workload)}, which the epsilon of this run would not count: {WAYS}"
            )
    if settings.pretrained in (None, RANDOM) or settings.pretrained_sha256 is not None:
        return settings
    # the model's builder says what is missing, or that the workload takes none
    with suppress(OSError, ImportError):
        return replace(settings, pretrained_sha256=digest_of(str(settings.pretrained)))
    return settings


def refuse_unfinished(start: str) -> None:
    """Raise ValueError for a run whose weights are in its checkpoint alone: it has not ended."""
    run = RunDir(Path(start).expanduser())
    if run.config.exists() and run.has_checkpoint and not (run.path / FOLDER_FILE).exists():
        raise ValueError(
            f"start_from={start} has not finished: finish it with fedlsg resume {start} first, or, "
            f"if this fedlsg cannot, write its weights with fedlsg export {start} --unfinished"
        )


def starts_of(settings: Settings) -> dict[str, str]:
    """Paths or names of the weights to start from and of those of features, by setting."""
    given = {name: getattr(settings, name) for name in ("pretrained", "features")}
    none = (None, RANDOM, *BUILT_IN)
    return {name: str(value) for name, value in given.items() if value not in none}


def rows_behind(source: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """Names of the rows that weights were trained on, by their records.

    So are those of the weights that they started from, and so on.

    source: a path or a name.
    seen: weights that were visited already, because records may name one another.
    """
    facts, seen = facts_of(source), seen | {source}
    options = facts.get("options", {})
    read = {*facts.get("public_data", []), *facts.get("rows_behind", [])}
    if "pretrained_on" in facts:
        read.add(str(facts["pretrained_on"].get("source")))
    if "method" in facts:
        read.add(row_name(str(facts.get("workload")), options.get("dataset")))
    earlier = {str(options.get(setting)) for setting in ("pretrained", "features")}
    earlier -= {RANDOM, *BUILT_IN, *seen}
    return read.union(*(rows_behind(source_before, seen) for source_before in earlier))


def row_name(workload: str, dataset: str | None) -> str:
    """The name of a workload's training rows in records."""
    return f"{DATA}{shown(workload)}" + (f" {dataset}" if dataset else "")


def workload_of(name: str) -> str:
    """The workload in a ``row_name``, which has a data set only for those of the hub."""
    workload, _, dataset = name.removeprefix(DATA).partition(" ")
    # a user's own workload may be called "digits of mine", which is not "digits"
    return workload if not dataset or workload in NOT_DATA_SETS else name


def from_root(settings: Settings) -> Settings:
    """The settings with absolute paths of weights and public data that are in the working folder.

    Other names stay: of a built-in encoder or data set, of a repository on the hub, of a file that
    does not exist here. A deployed client must not call this: the server would learn whether a file
    that it names exists there.
    """
    values = values_of(settings)
    weights, features = (str(values.get(name, RANDOM)) for name in ("pretrained", "features"))
    start = str(values.get("start_from", ""))
    if start and _holds_weights(Path(start).expanduser()):
        values["start_from"] = str(Path(start).expanduser().resolve())
    if weights != RANDOM and _holds_weights(Path(weights).expanduser()):
        values["pretrained"] = str(Path(weights).expanduser().resolve())
    if written(features) is not None:
        values["features"] = str(Path(features).expanduser().resolve())
    for name in ("source", "public_rows"):
        value = str(values.get(name, ""))
        path = value.removeprefix(DATA)
        if path not in ("", value, *workloads.names()) and Path(path).expanduser().exists():
            values[name] = f"{DATA}{Path(path).expanduser().resolve()}"
    workload = workloads.own(str(values.get("workload", "")))
    if workload is not None and workload.has_relative_paths:
        values["data_root"] = str(Path(str(values.get("data_root") or ".")).expanduser().resolve())
    trace = Path(str(values.get("availability", ""))).expanduser()
    if trace.is_file():
        values["availability"] = str(trace.resolve())
    if values.get("callbacks"):
        values["callbacks"] = callbacks_with(values["callbacks"], user_code.absolute)
    return from_values(values)


def _holds_weights(place: Path) -> bool:
    """Whether a path is a file, or a folder with weights."""
    return place.is_file() or (place / FOLDER_FILE).is_file()


def find_source(spec: str, workload: LoadedWorkload, settings: Resolved) -> ProbeSource:
    """The source that the settings name. Raises ValueError as ``probe_source``."""
    options = Options(**{f.name: getattr(settings, f.name) for f in fields(Options)})
    data_dir = None if settings.data_dir is None else Path(settings.data_dir)
    return probe_source(workload, spec, data_dir=data_dir, options=options)


def late_source(
    spec: str, workload: LoadedWorkload, find: Callable[[], ProbeSource], *, deployed: bool
) -> ProbeSource:
    """A source that calls ``find`` at the first draw.

    A ``deployed`` client runs no function and reads no path that a setting names. Then the source
    has no draw, and the server sends what the client cannot derive.
    """

    def draw(count: int, generator: torch.Generator) -> Any:
        draw_inputs = find().draw
        assert draw_inputs is not None
        return draw_inputs(count, generator)

    may_draw: Draw | None = None if deployed and ":" in spec else draw
    return ProbeSource(
        name=user_code.shown(spec),
        draw=may_draw,
        loss=workload.loss,
        num_classes=workload.num_classes,
    )


@torch.no_grad()
def check_source(source: ProbeSource, model: nn.Module, workload: LoadedWorkload) -> None:
    """Raise ValueError unless the source draws the same again, and the model takes its inputs."""
    first, again = (source.inputs(TRIED, public_generator(0, "probe", "check")) for _ in range(2))
    if not all(map(_equal, _fields(first), _fields(again))):
        raise ValueError(
            f"source={source.name} gives other inputs when it is called again, so that server and "
            "clients would not have the same carriers: draw from the generator that it is given "
            "only"
        )
    inputs = on_device_of(model.eval(), first)
    try:
        model(**inputs) if isinstance(inputs, dict) else model(inputs)
    except Exception as error:
        wanted = forms(workload.test.batch(torch.zeros(1, dtype=torch.int64))[0])
        raise ValueError(
            f"source={source.name} gives inputs {forms(first)}, and the model fails on them "
            f"({type(error).__name__}: {error}); inputs of {workload.name} are {wanted}"
        ) from error


def source_digest(source: ProbeSource) -> str:
    """SHA-256, hexadecimal, of inputs that the source draws with a fixed seed.

    It is another one for another file of data, and for another number of rows.
    """
    sha = hashlib.sha256()
    for value in _fields(source.inputs(DIGESTED, public_generator(0, "probe", "digest"))):
        sha.update(
            f"{value.dtype} {tuple(value.shape)}\n".encode()
            + value.contiguous().cpu().numpy().tobytes()
        )
    return sha.hexdigest()


def _fields(inputs: Any) -> list[Tensor]:
    """The tensors of a model's inputs."""
    return list(inputs.values()) if isinstance(inputs, dict) else [inputs]


def _equal(first: Tensor, again: Tensor) -> bool:
    """Whether two tensors have the same shape and numbers, NaN included."""
    return first.shape == again.shape and torch.allclose(
        first, again, rtol=0, atol=0, equal_nan=True
    )
