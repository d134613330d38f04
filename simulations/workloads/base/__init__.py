"""A workload is the splits of one data set, the models that fit it, and a preset.

split           the examples of a split, how batches of them are read, and what guessing reaches
parts           the client of each row
initial_model   a model with public initial weights
public_inputs   synthetic inputs, and how images are stored
normalise       normalise=public
stored_arrays   stored rows as arrays by name
made_ahead      rows that worker processes decode
cache           arrays that are built once
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlsg.carriers.probe.carrier import Draw
from fedlsg.config.directions import higher_is_better
from fedlsg.gradients import LossFunction
from fedlsg.simulations.workloads.base.parts import Parts
from fedlsg.simulations.workloads.base.public_inputs import Pixels
from fedlsg.simulations.workloads.base.split import Augment, NoRows, Split

Progress = Callable[[str], None]
"""Is called with a line of text during slow work."""


def silent(line: str) -> None:
    """A progress callback that reports nothing."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of data and model, by their names; None is the workload's default.

    A loader refuses a setting that it does not use. Every workload uses those in EVERYWHERE.
    Raises ValueError, naming setting and fix, for settings of features that do not fit together,
    and for an ``image_background`` that is not a colour.
    """

    model: str | None = None
    pretrained: str | None = None
    pretrained_sha256: str | None = None
    train_layers: int | None = None
    encoder_dropout: float | None = None
    features: str | None = None
    feature_norm: str | None = None
    feature_axes: int | None = None
    patch_filters: int | None = None
    patch_size: int | None = None
    patch_places: int | None = None
    patch_scales: int | None = None
    head_width: int | None = None
    dataset: str | None = None
    subset: str | None = None
    input_columns: str | None = None
    label_column: str | None = None
    test_split: str | None = None
    image_background: str | None = None
    image_frame: int | None = None
    max_length: int | None = None
    train_rows: int | None = None
    holdout: float | None = None
    data_root: str | None = None

    def __post_init__(self) -> None:
        if self.image_background is not None:
            _check_colour(self.image_background)
        if self.features is None:
            for name in ("feature_norm", "feature_axes", "head_width", *OF_PATCHES):
                self._refuse(name, "is for public features: give features, too, or leave it out")
            return
        if self.features != "patches":
            for name in OF_PATCHES:
                self._refuse(name, "is for features=patches: leave it out, or give these")
        if self.model in (None, "linear"):
            self._refuse("head_width", "is for model=mlp and model=cnn: give one, or leave it out")
        for name, why in (
            ("pretrained", "name its weights by features"),
            ("train_layers", "its layers are all frozen"),
            ("encoder_dropout", "its features are computed once"),
        ):
            if (value := getattr(self, name)) is not None:
                raise ValueError(
                    f"features={self.features} is frozen, and {why}: leave {name}={value} out"
                )

    def _refuse(self, name: str, why: str) -> None:
        """Raise ValueError if this setting is given."""
        if (value := getattr(self, name)) is not None:
            raise ValueError(f"{name}={value} {why}")


def _check_colour(name: str) -> None:
    """Raise ValueError for a name that is not a colour of Pillow, or a transparent one."""
    from PIL import ImageColor

    try:
        is_opaque = len(ImageColor.getrgb(name)) == 3  # a fourth number is the opacity
    except ValueError:
        is_opaque = False
    if not is_opaque:
        raise ValueError(
            f"image_background={name!r}: expected an opaque colour, such as white, black or #808080"
        )


OF_PATCHES = ("patch_filters", "patch_size", "patch_places", "patch_scales")
"""Options of features=patches."""
EVERYWHERE = (
    "model",
    "pretrained",
    "pretrained_sha256",
    "train_rows",
    "holdout",
    "features",
    "feature_norm",
    "feature_axes",
    "head_width",
    *OF_PATCHES,
)
"""Options that every workload reads."""
IMAGES = ("image_background", "image_frame")
"""Options of workloads that read images from files."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of ``workloads.load`` for the loader of a workload; see there."""

    data_dir: Path | None
    cache_dir: Path | None
    options: Options
    progress: Progress
    public_only: bool
    seed: int | None = None
    few_rows: bool = False


INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "dataset": "give the data as train= and test=",
        "input_columns": "give their columns as inputs=",
        "label_column": "give its column as targets=",
        "test_split": "give the rows as test=",
        "max_length": "cut texts off in transform=",
    }
)
"""What to do about settings of the hub's data sets in a run on data of a user's own."""


def refuse_unused(
    options: Options, *, workload: str, used: tuple[str, ...] = (), own_data: bool = False
) -> None:
    """Raise ValueError for a given option that the workload does not use, or a private test split.

    used: the options that it reads, in addition to EVERYWHERE.
    own_data: the workload is of a user's own, so the message says what to do ``INSTEAD``.
    """
    fixes = INSTEAD if own_data else {}
    for f in fields(Options):
        value = getattr(options, f.name)
        if value is not None and f.name not in (*used, *EVERYWHERE):
            raise ValueError(
                f"workload {workload} has no use for {f.name}={value!r}: "
                f"{fixes.get(f.name, 'leave it out')}"
            )
    if options.test_split == "train":
        raise ValueError("expected a test_split other than 'train', which is what the clients hold")


Read = Callable[[Path, Path], Split]
"""Reads a client's own rows at a path, with a cache folder for decoded or tokenised rows."""


def cross_entropy(outputs: Any, targets: Tensor) -> Tensor:
    """The loss of workloads with classes, in nats: one value an example, shape (B,)."""
    return functional.cross_entropy(outputs, targets, reduction="none")


GIVEN = "given"
"""The name of the partition that a workload's data bring: lists of rows, data sets of clients."""

Metric = Callable[[Tensor, Tensor], Any]
"""Gives a number for the outputs and targets of all examples of a test split, on the CPU."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedWorkload:
    """A data set with the models and settings that suit it.

    name: of the workload.
    train: the private training split; ``NoRows`` at the server of a deployment.
    test: the public split that accuracy is reported on, under ``test_name``.
    other_tests: more test splits by name, whose accuracies are averaged with it, each with the same
        weight.
    num_classes: targets are classes 0 to num_classes - 1, and accuracy is measured. None for other
        targets.
    loss: one value an example, shape (B,).
    metrics: more numbers that are measured on the test splits, by name.
    models: builders by name, the first is the default; build through ``build_model``.
    classifier: the path of the head in every model, whose last Linear stays dense; None: the
        model's last Linear.
    augment: changes training inputs at random, or None; never applied to a test split.
    columns: values of the training rows by which clients may be formed, or that say whose a row is,
        by name (N,).
    test_columns: the same of the rows of ``test``, by which they are split over the clients.
    unit: the column of persons that the data were declared with; "" without one.
    parts: the clients that the data bring, for partition=given. Rows without a client are not used.
        None if the data bring none.
    defaults: the preset, by setting; public constants chosen before the run, never derived from its
        data.
    method_defaults: settings of a method that differ from the preset, by method and setting.
    read: reads a client's own rows, in the form of the public ones; None if clients cannot hold
        their own.
    synthetic: public inputs from no data at all, by name, the default first; empty if none fit.
    pixels: how images are stored, so that other images can take their form; None for other inputs.
    places: files and folders that the splits were read from, as far as they are known.
    features: what reports say of the public features that the inputs are; None for inputs as they
        are.
    raw: the workload whose inputs became these features; None for inputs as they are.
    encode: makes these features of images as ``Split.encoded_from`` has them, with a graph back to
        their pixels. None for inputs as they are, and for features without a graph.
    left_out: training rows that train_rows or holdout took away. They are as private as the others.
    normalised: mean and deviation of each column or channel, with normalise=public; else None.
    data: how rows of a user's own were read, for users of the model: columns, classes, scale. All
        of it is public.
    said: the same in one line for the owner of the data, with the number of rows.
    arguments: of a ``fedlsg.Workload``, as its user wrote them; "..." for what has no short form.
    Raises ValueError for a label outside [0, num_classes), and for two test splits of one name.
    """

    name: str
    train: Split
    test: Split
    test_name: str = "test"
    other_tests: Mapping[str, Split] = field(default_factory=dict)
    num_classes: int | None
    loss: LossFunction = cross_entropy
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    models: Mapping[str, Callable[[], nn.Module]]
    classifier: str | None = "classifier"
    augment: Augment | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    test_columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    unit: str = ""
    parts: Parts | None = None
    defaults: Mapping[str, object]
    method_defaults: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    read: Read | None = None
    synthetic: Mapping[str, Draw] = field(default_factory=dict)
    pixels: Pixels | None = None
    places: tuple[Path, ...] = ()
    features: Mapping[str, Any] | None = None
    raw: "LoadedWorkload | None" = None
    encode: Callable[[Tensor], Tensor] | None = None
    left_out: "tuple[Split, ...]" = ()
    normalised: Mapping[str, list[float]] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.test_name in self.other_tests:
            raise ValueError(f"{self.name}: two test splits are named {self.test_name}")
        if self.num_classes is None:
            return
        for name, split in {"train": self.train, **self.tests}.items():
            if isinstance(split, NoRows):
                continue
            if split.labels.dtype != torch.int64 or split.labels.ndim != 1:
                form = f"{split.labels.dtype} {tuple(split.labels.shape)}"
                raise ValueError(
                    f"{self.name}: expected classes, int64 of shape (n,), as {name} labels, got "
                    f"{form}"
                )
            low, high = int(split.labels.min()), int(split.labels.max())
            if not 0 <= low <= high < self.num_classes:
                fix = f"give num_classes={high + 1} and a model of as many outputs"
                if (low, high) == (1, self.num_classes):
                    fix = "give targets - 1"
                elif low < 0:
                    fix = "give targets from 0 on"
                raise ValueError(
                    f"{name} targets are {low} to {high}, and the {self.num_classes} classes of "
                    f"{self.name} are 0 to {self.num_classes - 1}: {fix}"
                )

    def classes(self, purpose: str) -> int:
        """The number of classes. Raises ValueError, naming what needs them, for other targets."""
        if self.num_classes is None:
            raise ValueError(
                f"{purpose} needs targets that are classes (int64, one an example), which "
                f"{self.name} has not"
            )
        return self.num_classes

    @property
    def tests(self) -> dict[str, Split]:
        """All test splits by name, ``test`` first."""
        return {self.test_name: self.test, **self.other_tests}

    @property
    def before_features(self) -> "LoadedWorkload":
        """The workload with the inputs that its encoder reads; the same for inputs as they are."""
        return self.with_splits(lambda _, split: split.encoded_from or split)

    def with_splits(self, change: Callable[[str, Split], Split]) -> "LoadedWorkload":
        """The workload with ``change(name, split)`` in place of each split that has rows."""
        tests = {name: change(name, split) for name, split in self.tests.items()}
        train = self.train if isinstance(self.train, NoRows) else change("train", self.train)
        return replace(self, train=train, test=tests.pop(self.test_name), other_tests=tests)

    @property
    def directions(self) -> dict[str, bool | None]:
        """Whether more is better, for each number that is measured on the test splits.

        Names are columns of rounds.csv; None: not known.
        """
        scores = ("loss",) if self.num_classes is None else ("accuracy", "loss")
        measured: dict[str, Metric | None] = {**dict.fromkeys(scores), **self.metrics}
        return {name: higher_is_better(name, metric) for name, metric in measured.items()}

    @property
    def has_images(self) -> bool:
        """Whether the inputs of the model are images, and not features of them."""
        return self.pixels is not None and self.features is None

    @property
    def features_digest(self) -> str:
        """A digest of all that makes features of inputs; empty for inputs as they are.

        Clients and server have to agree on it.
        """
        return str((self.features or {}).get("digest", ""))

    @property
    def default_model(self) -> str:
        """The name of the model that is built if none is named."""
        return next(iter(self.models))
