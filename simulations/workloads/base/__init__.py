"""What a workload is: the splits of one data set, the models that fit it, and a preset;
``normalise=public``.

Next to it: ``split``, ``model``, ``synthetic``: public inputs; ``cache``: arrays built once.

normalise=public: inputs less their mean, over their deviation, both of the public test rows. The
constants come from no training row, so each input is still a function of its own row, and nothing
is charged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from fedlsg.carriers.probe.carrier import Draw
from fedlsg.config.directions import higher_is_better
from fedlsg.gradients import LossFunction
from fedlsg.simulations.workloads.base.parts import Parts
from fedlsg.simulations.workloads.base.public_inputs import Pixels, image_draws
from fedlsg.simulations.workloads.base.split import Augment, Inputs, NoRows, Split

Progress = Callable[[str], None]


def silent(line: str) -> None:
    """A progress callback that reports nothing."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of data and model next to the workload's name; None is the workload's default.

    A loader refuses, naming the setting, what it does not use; every workload uses what is in
    EVERYWHERE.
    Raises ValueError, naming setting and fix, for settings of features that do not fit together,
    and for anything that is not a colour.
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
                if (value := getattr(self, name)) is not None:
                    raise ValueError(
                        f"{name}={value} is for public features: give features, too, or leave it "
                        "out"
                    )
            return
        if self.features != "patches":
            for name in OF_PATCHES:
                if (value := getattr(self, name)) is not None:
                    raise ValueError(
                        f"{name}={value} is for features=patches: leave it out, or give these"
                    )
        if self.head_width is not None and self.model in (None, "linear"):
            raise ValueError(
                f"head_width={self.head_width} is for model=mlp and model=cnn: give one, or leave "
                "it out"
            )
        for name, why in (
            ("pretrained", "name its weights by features"),
            ("train_layers", "its layers are all frozen"),
            ("encoder_dropout", "its features are computed once"),
        ):
            if (value := getattr(self, name)) is not None:
                raise ValueError(
                    f"features={self.features} is frozen, and {why}: leave {name}={value} out"
                )


def _check_colour(name: str) -> None:
    """Raise ValueError for what Pillow takes for no colour, or for a transparent one."""
    from PIL import ImageColor

    try:
        transparent = len(ImageColor.getrgb(name)) > 3
    except ValueError:
        transparent = True
    if transparent:
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
    """What ``workloads.load`` passes on to the loader of a workload; its docstring says what each
    field means.
    """

    data_dir: Path | None
    cache_dir: Path | None
    options: Options
    progress: Progress
    public_only: bool
    seed: int | None = None


INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "dataset": "give the data as train= and test=",
        "input_columns": "give their columns as inputs=",
        "label_column": "give its column as targets=",
        "test_split": "give the rows as test=",
        "max_length": "cut texts off in transform=",
    }
)
"""What data of a user's own take in place of settings of the hub's."""


def refuse_unused(
    options: Options, *, workload: str, used: tuple[str, ...] = (), own_data: bool = False
) -> None:
    """Raise ValueError, naming the setting, for a given option that the workload does not use, or a
    private test split.

    ``used`` names those it reads, next to EVERYWHERE. ``own_data``: the message names ``INSTEAD``.
    """
    way_of = INSTEAD if own_data else {}
    for f in fields(Options):
        value = getattr(options, f.name)
        if value is not None and f.name not in (*used, *EVERYWHERE):
            raise ValueError(
                f"workload {workload} has no use for {f.name}={value!r}: "
                f"{way_of.get(f.name, 'leave it out')}"
            )
    if options.test_split == "train":
        raise ValueError("expected a test_split other than 'train', which is what the clients hold")


Read = Callable[[Path, Path], Split]
"""Reads a client's own rows at a path; decoded or tokenised rows go to a cache folder of that
client.
"""


def cross_entropy(outputs: Any, targets: Tensor) -> Tensor:
    """The loss of workloads with classes, in nats: one value an example, shape (B,)."""
    return functional.cross_entropy(outputs, targets, reduction="none")


GIVEN = "given"
"""The partition that the data of a workload bring: lists of rows, data sets of clients, ..."""

Metric = Callable[[Tensor, Tensor], Any]
"""``metric(outputs, targets)`` of all examples of a test split, on the CPU: a number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedWorkload:
    """A data set with the models and settings that suit it.

    test: the public split that accuracy is reported on, under ``test_name``.
    other_tests: more test splits by name, whose accuracies are averaged with it, each with the same
        weight.
    num_classes: targets are classes 0 to num_classes - 1, and accuracy is measured; None for other
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
    unit: the column of persons that the data were declared with; "": none.
    parts: the clients that the data bring, for partition=given; rows without a client are not used.
    defaults: the preset, by setting; public constants chosen before the run, never derived from its
        data.
    method_defaults: what differs from it for a method, by method and setting.
    read: reads a client's own rows, in the form of the public ones; None if clients cannot hold
        their own.
    synthetic: public inputs from no data at all, by name, the default first; empty if nothing is
        known that fits.
    pixels: how images are stored, so that other images can take their form; None for other inputs.
    places: files and folders that the splits were read from, as far as they are known.
    features: what reports say of the public features that the inputs are; None for inputs as they
        are.
    raw: the workload whose inputs became these features; None for inputs as they are.
    encode: images as ``Split.encoded_from`` has them to these features, with a graph back to their
        pixels; None for inputs as they are, and where there is no graph.
    left_out: training rows that train_rows or holdout took away. They are as private as the others.
    normalised: mean and deviation of each column or channel that inputs were normalised by, with
        normalise=public.
    data: how rows of a user's own were read, for users of the model: columns, classes, scale. All
        of it public.
    said: the same in one line for the owner of the data, with the number of rows.
    arguments: of a ``fedlsg.Workload``, as its user typed them; "..." for what has no short form.
    Raises ValueError for a label outside [0, num_classes).
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
        for name, split in {"train": self.train, **self.tests}.items():
            if isinstance(split, NoRows) or self.num_classes is None:
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
        """The workload with each split, which is there, as ``change(name, split)`` makes it."""
        tests = {name: change(name, split) for name, split in self.tests.items()}
        train = self.train if isinstance(self.train, NoRows) else change("train", self.train)
        return replace(self, train=train, test=tests.pop(self.test_name), other_tests=tests)

    @property
    def directions(self) -> dict[str, bool | None]:
        """What is measured on the test splits, by column of rounds.csv: whether more is better."""
        scores = ("loss",) if self.num_classes is None else ("accuracy", "loss")
        measured: dict[str, Metric | None] = {**dict.fromkeys(scores), **self.metrics}
        return {name: higher_is_better(name, metric) for name, metric in measured.items()}

    @property
    def features_digest(self) -> str:
        """Of all that inputs become features with, which clients and server agree on; empty for
        inputs as they are.
        """
        return str((self.features or {}).get("digest", ""))

    @property
    def default_model(self) -> str:
        return next(iter(self.models))


NORMALISED_ROWS = 10_000
"""Rows of the test split that the constants are computed from, at most."""
LEAST_DEVIATION = 1e-12
"""A deviation below it is that of a constant, which stays 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Normalised:
    """``prepare`` of a split, then (x - mean) / deviation of each column, or of each channel of
    images (B, c, h, w).
    """

    prepare: Callable[[Any], Inputs]
    mean: Float[Tensor, " columns"]
    deviation: Float[Tensor, " columns"]

    def __call__(self, rows: Any) -> Inputs:
        inputs = self.prepare(rows)
        assert isinstance(inputs, Tensor), "the constants are those of one tensor"
        shape = (1, -1) + (1,) * (inputs.ndim - 2)
        return (inputs - self.mean.reshape(shape)) / self.deviation.reshape(shape)


@torch.no_grad()
def normalised(workload: LoadedWorkload) -> LoadedWorkload:
    """The workload with inputs of mean 0 and deviation 1 over its public test rows.

    Raises ValueError for inputs that are not a floating-point tensor of shape (B, columns) or (B,
    channels, ...).
    """
    test = workload.test
    inputs, _ = test.batch(torch.linspace(0, len(test) - 1, min(NORMALISED_ROWS, len(test))).long())
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or inputs.ndim < 2:
        form = (
            "several inputs"
            if isinstance(inputs, dict)
            else f"{inputs.dtype} {tuple(inputs.shape)}"
        )
        raise ValueError(
            f"normalise=public: expected numbers of shape (B, columns) or images, got {form}: "
            "leave it out"
        )
    columns = inputs.double().transpose(0, 1).flatten(1)
    mean, deviation = columns.mean(1), columns.std(1, correction=0)
    deviation = torch.where(deviation > LEAST_DEVIATION, deviation, 1.0)
    constants = {"mean": mean.to(inputs.dtype), "deviation": deviation.to(inputs.dtype)}

    read, pixels = workload.read, workload.pixels
    if pixels is not None:  # what is drawn or named as public images is normalised, too
        pixels = replace(pixels, prepare=Normalised(prepare=pixels.prepare, **constants))
    return replace(
        workload.with_splits(
            lambda _, split: replace(split, prepare=Normalised(prepare=split.prepare, **constants))
        ),
        read=None if read is None else NormalisedRead(read=read, constants=constants),
        pixels=pixels,
        synthetic=workload.synthetic
        if pixels is None
        else {**workload.synthetic, **image_draws(pixels)},
        normalised={name: value.tolist() for name, value in constants.items()},
        encode=None,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalisedRead:
    """Reads a deployed client's own rows, and normalises them by the same public constants."""

    read: Read
    constants: dict[str, Tensor]

    def __call__(self, path: Path, cache: Path) -> Split:
        split = self.read(path, cache)
        return replace(split, prepare=Normalised(prepare=split.prepare, **self.constants))
