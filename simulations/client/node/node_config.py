"""The node config of a deployed client: its number, ledger, budget over all runs, and data.

    flower-supernode --node-config "partition-id=0 ledger-dir='/srv/ledger' epsilon-max=3.0
                                    delta-max=1e-6 data='glue-sst2:/srv/rows.parquet'"

The server has no influence on it. ``data``, ``WORKLOAD:PATH``, names the workload of the rows, and
a file or a folder with shards of a training split. A run of another workload is refused. The client
itself says how its rows are read: a server that chose the label column, or the number of classes,
would learn which values are out of range. Without ``data`` the client takes its partition of the
run's workload, as a simulated client does.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import cast, get_args

from fedlsg.config.isolation import Wanted
from fedlsg.config.units import EXAMPLE, unit_named
from fedlsg.simulations import workloads
from fedlsg.simulations.client.node.refusals import OwnDataError, TermsError, log_failure
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.workloads import LoadedWorkload, Split
from fedlsg.simulations.workloads.base import OF_PATCHES
from fedlsg.simulations.workloads.partition import persons_of
from fedlsg.strategies.protocol.wire import LEAST_DELTA, LEAST_EPSILON, MOST_EPSILON

KEYS = (
    "partition-id",
    "num-partitions",
    "ledger-dir",
    "epsilon-max",
    "delta-max",
    "epsilon",
    "delta",
    "data",
    "input-columns",
    "label-column",
    "classes",
    "pretrained",
    "unit",
    "trust",
    "colluders",
    "accept-changed-data",
    "isolation",
    "noise-multiplier-min",
    "replies-without-noise",
)
"""Keys of the node config that are fedlsg's."""
TRUST = ("client", "secure", "aggregate")
"""Trust modes that a client may accept, from the strongest to the weakest."""

Config = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """The terms of a deployed client, independent of the server's run config.

    partition: its number in the federation, from 0.
    num_partitions: None if only the server knows it.
    ledger_dir: the folder of its one ledger.
    epsilon_max, delta_max: the budget of its data, over all runs.
    epsilon, delta: the budget of one run, to which this client's noise is calibrated; None takes
        the run's.
    data: its own rows, as ``WORKLOAD:PATH``; None takes its partition of the run's workload.
    input_columns, label_column, classes: of its own rows, if they are settings of the run's
        workload.
    pretrained: its own copy of the file that a run starts from, with the digest that the run
        announces.
    unit: what the budget protects: one example, this client with all of its data, or a person,
        named by a column of its rows; a ledger is for one unit.
    trust: the weakest mode that it accepts.
    colluders: the fewest colluding clients that a secure sum must tolerate; one at least, because
        every other client of a sum knows its own noise.
    accept_changed_data: continue at the spent epsilon with changed data.
    isolation: the level at which this client runs the code of the model; "auto" takes the announced
        level, unless it is weaker than the rule here.
    noise_multiplier_min: the smallest noise multiplier of a round that it trains in.
    """

    partition: int
    num_partitions: int | None = None
    ledger_dir: Path
    epsilon_max: float
    delta_max: float
    epsilon: float | None = None
    delta: float | None = None
    data: str | None = None
    input_columns: str | None = None
    label_column: str | None = None
    classes: int | None = None
    pretrained: Path | None = None
    unit: str = "example"
    trust: str = "client"
    colluders: int = 1
    accept_changed_data: bool = False
    isolation: Wanted = "auto"
    noise_multiplier_min: float = 0.0


def read_terms(config: Config) -> NodeConfig:
    """The terms of a node config.

    Raises TermsError, naming the key, for a missing, misspelt or invalid value.
    """
    refuse_misspelt(config)
    partitions = (
        None if "num-partitions" not in config else _integer(config, "num-partitions", least=1)
    )
    partition = _integer(config, "partition-id", least=0)
    if partitions is not None and partition >= partitions:
        raise TermsError(
            f"node config: expected partition-id={partition} < num-partitions={partitions}"
        )
    unit = config.get("unit", EXAMPLE.name)
    try:
        unit_named(unit)
    except ValueError as error:
        raise TermsError(f"node config: {error}") from None
    accept = config.get("accept-changed-data", False)
    if not isinstance(accept, bool):
        raise TermsError(
            f"node config: expected accept-changed-data={accept!r} to be true or false"
        )
    epsilon_max = number_of(config, "epsilon-max", below=math.inf)
    epsilon = number_of(config, "epsilon", below=MOST_EPSILON) if "epsilon" in config else None
    if epsilon is not None and not LEAST_EPSILON <= epsilon <= epsilon_max:
        raise TermsError(
            f"node config: expected {LEAST_EPSILON:g} <= epsilon={epsilon:g} <= "
            f"epsilon-max={epsilon_max:g}"
        )
    delta_max = number_of(config, "delta-max", below=1.0)
    delta = number_of(config, "delta", below=1.0) if "delta" in config else None
    if delta is not None and not LEAST_DELTA <= delta <= delta_max:
        raise TermsError(
            f"node config: expected {LEAST_DELTA:g} <= delta={delta:g} <= delta-max={delta_max:g}"
        )
    pretrained = _optional_text(config, "pretrained")
    return NodeConfig(
        partition=partition,
        num_partitions=partitions,
        ledger_dir=absolute(_text(config, "ledger-dir"), "ledger-dir"),
        epsilon_max=epsilon_max,
        delta_max=delta_max,
        epsilon=epsilon,
        delta=delta,
        data=_optional_text(config, "data"),
        input_columns=_optional_text(config, "input-columns"),
        label_column=_optional_text(config, "label-column"),
        classes=_integer(config, "classes", least=2) if "classes" in config else None,
        pretrained=None if pretrained is None else absolute(pretrained, "pretrained"),
        unit=str(unit),
        trust=_choice(config, "trust", TRUST),
        colluders=_colluders(config),
        accept_changed_data=accept,
        isolation=cast(Wanted, _choice(config, "isolation", get_args(Wanted))),
        noise_multiplier_min=least_noise(config),
    )


def _choice(config: Config, key: str, choices: tuple[str, ...]) -> str:
    """One of some texts; the first of them without the key."""
    value = config.get(key, choices[0])
    if value not in choices:
        raise TermsError(f"node config: expected {key}={value!r} among {', '.join(choices)}")
    return str(value)


def least_noise(config: Config) -> float:
    """noise-multiplier-min, or 0 without it. Raises TermsError unless it is a number above 0."""
    key = "noise-multiplier-min"
    return number_of(config, key, below=math.inf) if key in config else 0.0


def _colluders(config: Config) -> int:
    """The number of colluders, 1 without the key."""
    if "colluders" not in config:
        return 1
    if config["colluders"] == 0 and type(config["colluders"]) is int:
        raise TermsError(
            "node config: colluders=0 counts the noise of every other client, and each of them "
            "knows its own: expected colluders >= 1; leave it out for 1"
        )
    return _integer(config, "colluders", least=1)


def refuse_misspelt(config: Config) -> None:
    """Raise TermsError for a key that is nearly one of ours; others are Flower's, or a user's."""
    for key in config:
        near = get_close_matches(key.lower().replace("_", "-"), KEYS, n=1)
        if key not in KEYS and near:
            raise TermsError(f"node config: unknown key {key!r}; did you mean {near[0]!r}?")


def _require(config: Config, key: str) -> object:
    """The value of a key. Raises TermsError, with its meaning, if it is missing."""
    if key not in config:
        why = {
            "ledger-dir": ", the folder of its privacy ledger: without one of its own a deployed "
            "client trains nothing",
            "epsilon-max": ", the most epsilon that it may spend on its data, over all runs",
            "delta-max": ", the delta of epsilon-max, below one over its number of examples",
            "partition-id": ", the client's number in the federation, from 0",
        }
        raise TermsError(
            f"node config: a deployed client needs {key}{why.get(key, '')} (flower-supernode "
            "--node-config)"
        )
    return config[key]


def _text(config: Config, key: str) -> str:
    value = _require(config, key)
    if not isinstance(value, str) or not value.strip():
        raise TermsError(f"node config: expected {key}={value!r} to be a text in quotes")
    return value


def _optional_text(config: Config, key: str) -> str | None:
    return _text(config, key) if key in config else None


def absolute(text: str, key: str) -> Path:
    """An absolute path; Flower starts a client in any working directory.

    Raises TermsError for a relative path.
    """
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise TermsError(f"node config: cannot resolve {key}={text!r}: {error}") from None
    if not path.is_absolute():
        raise TermsError(
            f"node config: expected {key}={text!r} to be an absolute path, or one that begins with "
            "~"
        )
    return path


def _integer(config: Config, key: str, *, least: int) -> int:
    value = _require(config, key)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise TermsError(f"node config: expected {key}={value!r} to be a whole number >= {least}")
    return value


def number_of(config: Config, key: str, *, below: float) -> float:
    """A number above 0. Raises TermsError, naming the key, for anything else."""
    value = _require(config, key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < below:
        raise TermsError(f"node config: expected 0 < {key}={value!r} < {below:g}")
    return float(value)


FREE = ("hf-image", "hf-text")
"""Workloads whose columns are settings of a run."""
FORM = (
    "workload",
    "dataset",
    "subset",
    "input_columns",
    "label_column",
    "image_background",
    "image_frame",
)
"""Settings that determine how rows are read, for every workload."""

Read = Callable[[LoadedWorkload], Split]
"""Reads a client's rows, given the public part of the run's workload."""


def own_path(terms: NodeConfig, workload: str) -> Path | None:
    """The path of the client's own rows; None if it takes a partition.

    Raises TermsError for rows of another workload.
    """
    if terms.data is None:
        return None
    name, colon, path = terms.data.partition(":")
    if not colon or (name not in workloads.names() and workloads.own(name) is None):
        known = ", ".join(workloads.names())
        raise TermsError(
            f"node config: expected data={terms.data!r} as WORKLOAD:PATH, where WORKLOAD is one of "
            f"{known}"
        )
    if name != workload:
        raise TermsError(
            f"the run trains on workload {workload!r}, and this client's data are for {name!r}"
        )
    return absolute(path, "data")


def with_own_columns(settings: Settings, terms: NodeConfig) -> Settings:
    """The settings with the node config's columns, for a workload whose columns are settings.

    Raises TermsError if the run names other columns.
    """
    if settings.workload not in FREE:
        return settings
    for key in ("input-columns", "label-column", "classes"):
        if getattr(terms, key.replace("-", "_")) is None:
            raise TermsError(f"node config: own data for workload {settings.workload!r} need {key}")
    for name in ("input_columns", "label_column"):
        announced, own = getattr(settings, name), getattr(terms, name)
        if announced not in (None, own):
            raise TermsError(
                f"the run reads {name}={announced!r}, and this client's node config says {own!r}"
            )
    return replace(settings, input_columns=terms.input_columns, label_column=terms.label_column)


def form_of(settings: Settings, workload: LoadedWorkload) -> str:
    """The digest of all settings that determine how rows are read.

    For texts, these include the model that they are prepared for.
    """
    names = [*FORM]
    if workload.train.lengths is not None:
        names += ["model", "pretrained", "max_length"]
    if workload.features is not None:
        names += ["features", "feature_norm", "feature_axes", *OF_PATCHES, "max_length"]
    values = [workload.num_classes, *(getattr(settings, name) for name in names)]
    return hashlib.sha256(repr(values).encode()).hexdigest()


def reader(terms: NodeConfig, settings: Settings) -> Read:
    """A function that reads the client's rows, given the public part of the run's workload.

    It raises OwnDataError, whose text is constant: a loader's own text may quote a row. The
    client's log has that text. ``settings``: of the run, with the number of clients.
    """
    path = own_path(terms, settings.workload)

    def read(workload: LoadedWorkload) -> Split:
        if terms.classes not in (None, workload.num_classes):
            raise TermsError(
                f"the run's workload has {workload.num_classes} classes, and this client's node "
                f"config says classes={terms.classes}"
            )
        try:
            rows = _partition(terms, settings) if path is None else _rows(path, terms, workload)
            classes, labels = workload.num_classes, rows.labels
            if classes is not None and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
                raise ValueError(f"expected labels in 0..{classes - 1}")
            if unit_named(settings.unit).persons:  # whose each row is, no error may say
                persons_of(replace(workload, columns=rows.columns), settings.unit)
            return rows
        except Exception:
            log_failure()
            raise OwnDataError from None

    return read


def _rows(path: Path, terms: NodeConfig, workload: LoadedWorkload) -> Split:
    """The client's own rows at ``path``."""
    if workload.read is None:
        raise ValueError(f"workload {workload.name} reads no rows of a client's own")
    return workload.read(path, terms.ledger_dir / "cache")


def _partition(terms: NodeConfig, settings: Settings) -> Split:
    """The client's part of the run's workload, as every simulated client derives it."""
    base = prepare(settings)
    rows = base.parts[terms.partition]
    columns = {name: values[rows.numpy()] for name, values in base.workload.columns.items()}
    return replace(base.workload.train.pick(rows), columns=columns)
