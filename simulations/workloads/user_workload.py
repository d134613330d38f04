"""``fedlsg.Workload``: a user's own model, data and loss, in place of a workload's name.

def workload():                                     in mine.py
    return fedlsg.Workload(model=build, train=(x, y), test=(u, v), loss=nn.CrossEntropyLoss())

fedlsg run mine.py:workload
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedlsg import user_code
from fedlsg.carriers.probe.carrier import Draw
from fedlsg.config.choices import did_you_mean
from fedlsg.config.partitions import SCHEMES
from fedlsg.gradients import per_example_loss
from fedlsg.gradients.losses import CLASSES, OTHER_SHAPES, PerExampleLoss
from fedlsg.simulations.workloads.base import (
    GIVEN,
    IMAGES,
    LoadedWorkload,
    Metric,
    Request,
    refuse_unused,
    silent,
)
from fedlsg.simulations.workloads.base.parts import Parts
from fedlsg.simulations.workloads.base.public_inputs import CheckedDraw, find_pixels, image_draws
from fedlsg.simulations.workloads.base.split import HOLDOUT, NoRows, Split
from fedlsg.simulations.workloads.client_forms import data_sets, open_splits
from fedlsg.simulations.workloads.given_partition import (
    check_form,
    check_owners_order,
    given_parts,
)
from fedlsg.simulations.workloads.rows import (
    Columns,
    Rows,
    check_alike,
    check_targets,
    describe_data,
)
from fedlsg.simulations.workloads.rows.columns import Table
from fedlsg.simulations.workloads.rows.image_contents import Taken
from fedlsg.simulations.workloads.rows.read import read_rows, read_splits
from fedlsg.simulations.workloads.rows.transform import AT_ONCE, check_transform
from fedlsg.training.persons import numbers_of
from fedlsg.user_code.digest import digest_of_all
from fedlsg.user_code.short_traceback import short_traceback

PERSON = "person"
"""The unit of persons that an array names."""
MODEL = "own"
"""The name of the only model of a workload, and of a workload without a name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """A model, data and a loss. Data are read when a run begins, not when this is made.

    model: a function without arguments that builds the ``nn.Module``; or several, by name, the
        first the default. It is called with a public random seed, so that every process has equal
        weights.
    train, test: ``(inputs, targets)`` of arrays or tensors with one example a row (inputs may be a
        dict of them, by the argument of the model); a torch ``Dataset`` of such pairs with a
        length; a ``datasets.Dataset`` or a pandas table with columns; a pair of such a table and
        its targets; the path of a .csv (.tsv, .jsonl) or .parquet file, or of a folder with a
        folder of images for each class (and ``metadata.csv`` for more columns, one of them
        ``file_name``), or of a folder of ``save_to_disk``. Of a ``DatasetDict`` each takes the
        split of its name, of a DataLoader its Dataset. Or a list or dict of these, one a client.
        Columns are matched by name. A torch ``Dataset`` is read once, whole. ``test=None``: the
        setting ``holdout`` takes test rows from those of train.
        Relative paths begin at the setting ``data_root``, by default the folder in which the run
        begins. Nobody trains on ``test``: it is public, and every reported number is measured on
        it.
    loss: ``loss(outputs, targets)``, one value an example, shape (B,). Losses of torch in their
        usual form (``nn.CrossEntropyLoss()``, ``F.mse_loss``) are called with reduction "none".
    metrics: functions ``metric(outputs, targets)`` by name; each is called with all outputs and
        targets of ``test``, on the CPU, and gives a number. It may change what it gets. Accuracy is
        measured in addition where targets are classes. ``fedlsg.Lower(metric)`` and
        ``fedlsg.Higher(metric)`` declare which values are better, where the name does not say it.
    inputs, targets: names of columns, for data that have columns. Default: all others, and
        ``label``. Of a folder of images ``targets`` names a column of its metadata; default: the
        first folder of an image. Data without columns refuse both. Several target columns, of
        numbers, give targets (N, columns).
    transform: from stored rows to the model's inputs, each row by itself: texts to a dict of tokens
        padded to one length (called once), numbers or images (B, channels, height, width) uint8 to
        what the model takes (called for each batch). Default: numbers as they are, images of 8 bits
        divided by 255. Of several columns of texts, or of numbers and texts, it gets a list for
        each, in the order of inputs (called once).
    partition: how clients share ``train`` unless a run says otherwise: iid or another scheme of the
        setting ``partition``; a column of ``train`` (one client for each of its values; that of the
        targets, too); row numbers of each client, as a list or a dict by name; an owner for each
        row; Subsets of ``train``; or a partitioner of flwr-datasets. Default: the clients of
        ``train``, else iid.
    unit: whose each row of ``train`` is, where epsilon protects a person with all of its rows: a
        column of ``train``, which is then no input, or an array with one value a row. Runs have
        ``unit`` of that name ("person" for an array).
    num_classes: of integer targets, one an example; default: one more than the largest target of
        ``test``. Other targets, and those of torch's losses that are for no classes (mse_loss),
        have no accuracy.
    classes: names of all classes, in the order of their numbers, for targets that are texts.
        Default: those of ``test``, which is public, in order: training rows, which are private, say
        nothing of the classes.
    classifier: path of the head in the model, whose last Linear stays dense; default: the last
    Linear of the model.
    image_size: pixels on a side to which images of a folder are scaled; default: they have one
        size. The settings image_background and image_frame say how transparent images and files of
        several pages are read.
    probe: ``probe(count, generator)``: public inputs as the model takes them, (count, ...), or
        (inputs, targets): what a probe pushes through the model. It must read no training data.
        Default for images: synthetic ones.
    settings: the workload's own defaults of settings, as ``{"learning_rate": 0.5, "clients": 10}``.
    name: what reports call it; default: the name of the function that made it.

    Raises ValueError, when a run begins, for data of another form; the message names the argument
    and the fix.
    """

    model: Callable[[], nn.Module] | Mapping[str, Callable[[], nn.Module]]
    train: Any
    test: Any = None
    loss: Callable[..., Any]
    metrics: Mapping[str, Metric] | None = None
    inputs: str | Sequence[str] | None = None
    targets: str | Sequence[str] | None = None
    transform: Callable[..., Any] | None = None
    partition: Any = None
    unit: Any = None
    num_classes: int | None = None
    classes: Sequence[str] | None = None
    classifier: str | None = None
    image_size: int | None = None
    probe: Draw | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    name: str = ""

    @short_traceback
    def __post_init__(self) -> None:
        for name, build in self.models.items():
            if isinstance(build, nn.Module) or not callable(build):
                raise ValueError(
                    f"expected a function that builds model {name!r}, got {type(build).__name__}: "
                    "a run builds the model in several processes; write model=lambda: MyModel(...)"
                )
        per_example_loss(self.loss)  # refuses what is not a loss
        if not (
            self.num_classes is None or (type(self.num_classes) is int and self.num_classes > 0)
        ):
            raise ValueError(
                f"num_classes={self.num_classes!r}: expected a whole number of 1 or more, or None"
            )
        if not isinstance(self.metrics or {}, Mapping):
            raise ValueError(
                f"metrics={type(self.metrics).__name__}: expected a dict, such as {{'mae': "
                "function}"
            )
        if self.classes is not None and (
            not isinstance(self.classes, list | tuple) or len({*self.classes}) < len(self.classes)
        ):
            raise ValueError(
                f"classes={self.classes!r}: expected a list of different names, in the order of "
                "their numbers"
            )
        if not (self.partition is None or isinstance(self.partition, str)):
            check_form(self.partition)
            if data_sets(self.train, self.test) is not None:
                raise ValueError(
                    "partition: train has a data set for each client already: leave one of the two "
                    "out; a scheme or a column deals the rows of all again"
                )
        if self.probe is not None and not callable(self.probe):
            raise ValueError(
                f"probe={type(self.probe).__name__}: expected a function probe(count, generator)"
            )
        for name, metric in (self.metrics or {}).items():
            if not callable(metric) or name in RESERVED:
                why = "is a column of rounds.csv already" if name in RESERVED else "is no function"
                raise ValueError(f"metrics[{name!r}] {why}: give name=function(outputs, targets)")

    @property
    def models(self) -> Mapping[str, Callable[[], nn.Module]]:
        """The builders by name."""
        return self.model if isinstance(self.model, Mapping) else {MODEL: self.model}

    @property
    def has_relative_paths(self) -> bool:
        """Whether data are found from the setting ``data_root``."""
        return not all(
            Path(place).expanduser().is_absolute()
            for data in (self.train, self.test)
            for place in _places(data)
        )

    @property
    def defaults(self) -> Mapping[str, object]:
        """The preset: settings that the workload gives."""
        scheme: Any = "iid"
        if isinstance(self.partition, str):
            scheme = self.partition
        elif self.partition is not None or data_sets(self.train, self.test) is not None:
            scheme = GIVEN
        return {"partition": scheme, **self.settings}

    @property
    def method_defaults(self) -> Mapping[str, Mapping[str, object]]:
        """No method has settings of its own here."""
        return {}

    @property
    def arguments(self) -> dict[str, str]:
        """Optional arguments that were given, as Python writes them; "..." for rows and functions.

        The file or folder of train is among them, by its name without its place.
        """
        given = {}
        if isinstance(self.train, str | Path):
            given["train"] = Path(self.train).name
        required = ("model", "train", "test", "loss", "settings", "name")
        given |= {f.name: getattr(self, f.name) for f in fields(self) if f.name not in required}
        return {name: _as_written(value) for name, value in given.items() if value is not None}

    @property
    def summary(self) -> str:
        """One line for a list."""
        return "A workload of your own."

    @property
    def digest(self) -> str:
        """SHA-256 of the code of model, loss, transform and probe; a metric may be repaired before
        a run is resumed.
        """
        parts = [*self.models.values(), self.loss, self.transform, self.probe]
        return digest_of_all(part for part in parts if part is not None)

    def load(self, request: Request) -> LoadedWorkload:
        """Read the splits; without train for a server whose clients hold their own rows."""
        name, root = self.name or MODEL, request.options.data_root
        refuse_unused(request.options, workload=name, used=("data_root", *IMAGES), own_data=True)
        columns = self._columns_to_read(request)
        given = {}
        if not request.public_only:
            given["train"] = _locate(self.train, root)
        if self.test is not None:
            given["test"] = _locate(self.test, root)
        opened = open_splits(given, name, request.options.holdout)
        self._check_partition(opened.splits.get("train"))
        rows_of, columns = read_splits(opened.splits, columns)
        test, train = rows_of["test"], rows_of.get("train")
        if not test.decoded:
            columns.images.refuse()
        facts = {**test.facts, **columns.images.facts}
        # a progress display cannot be sent to another process
        own_columns = replace(columns, progress=silent)
        loss, classes = per_example_loss(self.loss), self._classes(test)
        check_targets(test, loss, "test")
        check_transform(test.inputs, test.prepare, len(test.targets), "test")
        parts = opened.parts
        if train is not None:
            check_targets(train, loss, "train")
            check_alike(train, test)
            check_owners_order(given["train"], self.unit, "unit", "persons")
            if not (self.partition is None or isinstance(self.partition, str)):
                parts = given_parts(self.partition, given["train"], opened, train)

        def read(path: Path, cache: Path) -> Split:
            """A deployed client's own rows, with the columns, classes and scale of the public
            ones.
            """
            rows = read_rows(path, own_columns, "data")
            check_targets(rows, loss, "data")
            check_alike(rows, test)
            return replace(_split(rows, classes), columns=rows.columns)

        pixels = find_pixels(test.inputs[np.arange(min(len(test.targets), AT_ONCE))], test.prepare)
        synthetic: dict[str, Draw] = {}
        if self.probe is not None:
            probe_name = user_code.shown(user_code.name_of(self.probe))
            synthetic[probe_name] = CheckedDraw(self.probe, probe_name)
        if pixels is not None:
            synthetic |= image_draws(pixels)
        return LoadedWorkload(
            name=name,
            train=NoRows() if train is None else _split(train, classes),
            test=_split(test, classes),
            num_classes=classes,
            loss=loss,
            metrics=dict(self.metrics or {}),
            models=dict(self.models),
            classifier=self.classifier,
            columns={} if train is None else self._with_persons(train),
            test_columns=test.columns,
            unit=self.unit_name,
            parts=parts,
            defaults=self.defaults,
            read=read,
            synthetic=synthetic,
            pixels=pixels,
            places=(*_places(_locate(self.train, root)), *_places(_locate(self.test, root))),
            test_name=HOLDOUT if self.test is None else "test",
            data=facts,
            said=_describe(rows_of, given, parts, facts),
            arguments=self.arguments,
        )

    def _columns_to_read(self, request: Request) -> Columns:
        """How the splits are read, by the arguments and the settings of a run."""
        return Columns(
            inputs=_names(self.inputs),
            targets=_names(self.targets),
            more=tuple(name for name in (self.partition, self.unit) if isinstance(name, str)),
            texts=(self.unit,) if isinstance(self.unit, str) else (),  # 007 and 7 are two persons
            transform=self.transform,
            images=Taken.by(request.options, self.image_size),
            progress=request.progress,
            seed=request.seed,
            classes=_names(self.classes) or (),
        )

    @property
    def unit_name(self) -> str:
        """The name of the unit; "" for rows without persons."""
        if self.unit is None:
            return ""
        return self.unit if isinstance(self.unit, str) else PERSON

    def _check_partition(self, train: Any) -> None:
        """Raise ValueError for a partition of a table that is neither a scheme nor a column.

        This comes before columns are read: with a misspelt name, the column of the clients would be
        read as an input.
        """
        name = self.partition
        if not (isinstance(name, str) and isinstance(train, Table)) or name in SCHEMES:
            return
        if name not in train.columns:
            raise ValueError(
                f"partition={name}: expected {', '.join(SCHEMES)}, or a column of train"
                f"{did_you_mean(name, [*train.columns, *SCHEMES])}; it has "
                f"{', '.join(train.columns)}"
            )

    def _with_persons(self, train: Rows) -> Mapping[str, np.ndarray]:
        """The columns of train, with the persons that an array gives."""
        if self.unit is None or isinstance(self.unit, str):
            return train.columns
        persons = numbers_of(self.unit, "unit").numpy()
        if len(persons) != len(train.targets):
            raise ValueError(
                f"unit: expected one value for each of {len(train.targets)} training rows, got "
                f"{len(persons)}"
            )
        return {**train.columns, PERSON: persons}

    def _classes(self, test: Rows) -> int | None:
        """The number of classes; None for targets that are not classes."""
        targets, loss = test.targets, per_example_loss(self.loss)
        torch_loss = loss.name if isinstance(loss, PerExampleLoss) else ""
        is_integer = not targets.is_floating_point() and targets.dtype != torch.bool
        is_for_classes = not torch_loss or torch_loss in (*CLASSES, *OTHER_SHAPES)
        if is_integer and targets.ndim == 1 and is_for_classes:
            return self.num_classes or len(test.classes) or int(targets.max()) + 1
        if self.num_classes is not None:
            raise ValueError(
                f"num_classes={self.num_classes} is for integer targets, one an example; these "
                f"are {targets.dtype} "
                f"{tuple(targets.shape)}{f' for {torch_loss}' if torch_loss else ''}: leave it out"
            )
        return None


RESERVED = (
    "round",
    "accuracy",
    "loss",
    "epsilon_max",
    "epsilon_median",
    "uplink_bytes",
    "downlink_bytes",
    "uplink_bytes_wire",
    "downlink_bytes_wire",
    "uplink_messages",
    "downlink_messages",
    "seconds",
    "asked",
    "answered",
    "rejected",
    "reasons",
    "simulated_clock",
    "dropped",
    "late",
    "training_seconds",
    "communication_seconds",
    "accounting_seconds",
    "evaluation_seconds",
)
"""Columns of rounds.csv that a metric cannot be named after."""


def _names(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Names of columns as a tuple: one name or several; a column of a frame may be a number."""
    if given is None:
        return None
    return (str(given),) if isinstance(given, str | int) else tuple(map(str, given))


def _as_written(value: Any) -> str:
    """An argument as Python writes it; "..." for what is no name, number or list of names."""
    if isinstance(value, str | int):
        return repr(value)
    is_names = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    return repr(list(value)) if is_names else "..."


def _locate(data: Any, root: str | None) -> Any:
    """A path, or several, from ``root``, by default the working folder; other data as they are."""
    if isinstance(data, str | Path):
        return Path(root or ".").expanduser().resolve() / Path(data).expanduser()
    if not _places(data):
        return data
    if isinstance(data, Mapping):
        return {name: _locate(place, root) for name, place in data.items()}
    return [_locate(place, root) for place in data]


def _places(data: Any) -> Sequence[Any]:
    """The paths of data: one, or one for each client; none for other data."""
    if isinstance(data, str | Path):
        return (data,)
    items = list(data.values()) if isinstance(data, Mapping) else data
    if not isinstance(items, list | tuple):
        return ()
    return items if all(isinstance(item, str | Path) for item in items) else ()


def _describe(
    splits: Mapping[str, Rows],
    given: Mapping[str, Any],
    parts: Parts | None,
    facts: Mapping[str, Any],
) -> str:
    """The data that a run uses, in one line for people.

    given: the data of each split, with their paths located.
    facts: as in ``describe_data``.
    """
    more = {}
    for name, rows in splits.items():
        data = given.get(name)
        more[name] = f" of {data.name}" if isinstance(data, Path) else ""
        if rows.left_out:
            more[name] += f", without {', '.join(rows.left_out)}"
    if parts is not None and (nobody := int((parts.owner < 0).sum())):
        more["train"] += f", {nobody:,} of them with no client and not used"
    sizes = {name: len(splits[name].targets) for name in ("train", "test") if name in splits}
    return describe_data(sizes, facts, more)


def _split(rows: Rows, classes: int | None) -> Split:
    """Rows as a split: targets that are classes become int64."""
    labels = rows.targets.long() if classes is not None else rows.targets
    return Split(inputs=rows.inputs, labels=labels, prepare=rows.prepare, drawn=rows.drawn)


def make(source: Any, name: str) -> Workload:
    """The workload ``source``, or the one that the function ``source`` returns.

    name: of the function's reference or entry point; a workload without a name gets it.
    Raises ValueError for anything else.
    """
    workload = source
    if callable(source) and not isinstance(source, Workload):
        workload = user_code.run(f"workload {name}", source)
    if not isinstance(workload, Workload):
        raise ValueError(
            f"workload {name!r}: expected a fedlsg.Workload, or a function without arguments that "
            f"returns one, got {type(workload).__name__}"
        )
    return workload if workload.name else replace(workload, name=user_code.short(name))
