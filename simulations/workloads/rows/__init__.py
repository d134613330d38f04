"""Rows with columns: tables, folders of images and sets of the hub, read once, by one set of rules.

    read            whatever ``fedlsg.Workload`` takes -> ``Rows``
    table_files     a path of a .csv, .tsv, .jsonl or .parquet file -> a table of pyarrow
    columns         columns by their names: inputs, targets, index columns, classes
    image_folders   images -> arrays by one rule of scale; folders of them, with columns of metadata
    image_contents  what of an image is taken, so that nothing is lost without a word
    hub             a set of the hub: of a mirror, downloaded, or of the ``datasets`` library
    shards          the files of a set in a mirror
    table_parts     one table, of a file or the library -> batches of columns
    decode          columns of the hub -> images of one size as arrays, texts with labels
    loaders         data inside of something else, such as a ``DatasetDict``
    transform       a user's own transform, and the check that it makes each row from itself alone

Sizes, scales and classes follow from public rows (test) or a declared list, never from training
rows.

``Rows``, the form that all of them become, is here: inputs as they are stored, targets, and columns
that may form clients.
"""

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.gradients.losses import CLASSES, PerExampleLoss
from fedlsg.randomness import SecretStream, reproducible_stream, secret_stream
from fedlsg.simulations.workloads.base import Progress
from fedlsg.simulations.workloads.base.split import Inputs, Stored
from fedlsg.simulations.workloads.rows.image_contents import Taken
from fedlsg.simulations.workloads.rows.transform import (
    BY_COLUMN,
    Prepare,
    fields_of,
    prepared,
    transformed,
)
from fedlsg.strategies.own_loop.row_checks import not_finite
from fedlsg.training.persons import is_unclear


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How data are read; see the arguments of ``Workload``.

    inputs: names of the input columns; None: all that are not targets.
    targets: names of the target columns; None: ``label``, or the folders of images.
    more: columns of clients and of persons.
    transform: the user's function; None without one.
    images: what is read of each image.
    progress: reports slow steps.
    classes: the declared names; empty without.
    texts: columns that are texts in every file, even if they look like numbers in one.
    seed: that of a reproducible run, from which its rows draw. None: secret draws, new each time
        that data are read.
    like: the public rows, whose classes and scale of pixels are used. None while these are read.
    """

    inputs: tuple[str, ...] | None
    targets: tuple[str, ...] | None
    more: tuple[str, ...]
    transform: Callable[..., Any] | None
    images: Taken
    progress: Progress
    classes: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    seed: int | None = None
    like: "Rows | None" = None

    def stream_of(self, what: str) -> SecretStream:
        """The stream from which the rows of a split draw.

        That of test is public: every process has the same test rows.
        """
        if what == "test":
            return reproducible_stream(0, "rows", what)
        if self.seed is None:
            return secret_stream()
        return reproducible_stream(self.seed, "rows", what)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Rows that were read.

    inputs: N stored examples.
    targets: (N, ...).
    prepare: makes the model's inputs from stored ones.
    columns: other values of the rows, by name (N,).
    classes: names of the classes, if the data have them.
    names: the columns of the inputs.
    target_names: the columns of the targets.
    white: for images of more than 8 bits, the value of a file's pixels that becomes 1; else None.
    left_out: columns or files of the data that are neither inputs nor targets, for people.
    drawn: as in ``Split``.
    decoded: whether the inputs were images of files or of Pillow.
    """

    inputs: Stored
    targets: Tensor
    prepare: Callable[[Any], Inputs]
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    white: float | None = None
    left_out: tuple[str, ...] = ()
    drawn: bool = False
    decoded: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """What a run records about how rows were read. It follows from names and public rows."""
        facts = {
            "inputs": list(self.names),
            "targets": list(self.target_names),
            "classes": list(self.classes),
            "white": self.white,
        }
        return {name: value for name, value in facts.items() if value}


def of_stored(stored: Any, targets: Tensor, columns: Columns, what: str, /, **more: Any) -> Rows:
    """Rows of one array, or of a list of things of which a transform makes numbers, once.

    Without a transform, unsigned integers of 8 or 16 bits are pixels if an example has two
    dimensions or more. They are divided by 255, or by ``white_of`` the public rows.

    more: fields of ``Rows``.
    """
    is_array = isinstance(stored, Tensor | np.ndarray)
    if not is_array or (isinstance(stored, np.ndarray) and stored.dtype.kind in "OUS"):
        things = list(stored)
        several = bool(things) and isinstance(things[0], tuple) and len(columns.inputs or ()) > 1
        stored = transformed(things, columns.transform, several, what, columns.progress)
        columns = replace(columns, transform=None)
    if isinstance(stored, dict):
        return Rows(inputs=Fields(stored), targets=targets, prepare=Prepare(), **more)
    if str(stored.dtype).endswith("uint16") and stored.ndim > 2 and columns.transform is None:
        deep = np.asarray(stored, dtype=np.float32)
        more["white"] = white_of(deep) if columns.like is None else columns.like.white
        stored = deep / np.float32(more["white"] or 1)
    tensor = stored if isinstance(stored, Tensor) else as_tensor(stored, f"{what} inputs")
    tensor = tensor.detach().cpu()
    if columns.transform is not None:
        prepare = Prepare.by(columns.transform, what)
    elif tensor.dtype == torch.uint8 and tensor.ndim > 2:
        prepare = Prepare(pixels)
    else:
        prepare = Prepare()
        if tensor.dtype in (torch.uint8, torch.bool) and tensor.ndim == 2:
            tensor = tensor.float()  # columns of small numbers, which no layer takes as they are
    return Rows(inputs=Array(tensor), targets=targets, prepare=prepare, **more)


def as_tensor(value: Any, what: str) -> Tensor:
    """An array as a tensor; float64 of numpy, which few models take, as float32.

    Raises ValueError for a value that torch cannot convert.
    """
    if isinstance(value, np.ndarray):
        if not value.flags.writeable:  # those of pandas and pyarrow, of which torch warns
            value = value.copy()
        if not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
        if value.dtype.kind == "u" and value.dtype.itemsize > 1:  # torch computes little in these
            value = value.astype(np.int64)
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        texts = isinstance(value, np.ndarray) and value.dtype.kind in "OUS"
        fix = "several targets of an example are columns of one tensor, which the loss takes apart"
        if texts:
            fix = f"give a table with these columns: {BY_COLUMN}"
        raise ValueError(
            f"{what}: expected an array or a tensor, got {type(value).__name__} ({error}); {fix}"
        ) from None
    if tensor.ndim == 0:
        raise ValueError(f"{what}: expected one row an example, got a single number")
    if tensor.dtype == torch.float64 and not isinstance(value, Tensor):
        return tensor.float()
    return tensor


SMALL_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
"""Types of targets that become int64, as the losses of torch take them."""


def as_targets(value: Any, columns: Columns, what: str) -> tuple[Tensor, tuple[str, ...]]:
    """Targets as a tensor, and the names of their classes; no names for targets that are numbers.

    The number of a class is its place among the declared classes. Without a declaration, it is the
    place among those of the public rows, in order.
    Raises ValueError, naming the row, for a text that is none of these, and for a missing one.
    """
    is_object = isinstance(value, np.ndarray) and value.dtype.kind == "O"
    is_text = isinstance(value, np.ndarray) and value.dtype.kind in "US"
    things = value.tolist() if is_object or is_text else value
    if isinstance(things, list | tuple) and any(isinstance(target, str) for target in things):
        return _numbers_of_texts(things, columns, what)
    if is_object:
        for row, target in enumerate(things):
            if not isinstance(target, numbers.Real):
                raise ValueError(
                    f"{what} targets have no number in row {row}, {target!r}: fill it in, or "
                    "leave it out"
                )
        value = np.array(things)
    targets = as_tensor(value, f"{what} targets").detach().cpu()
    return targets.long() if targets.dtype in SMALL_INTEGERS else targets, ()


def _numbers_of_texts(
    things: Sequence[Any], columns: Columns, what: str
) -> tuple[Tensor, tuple[str, ...]]:
    """The number of the class of each text, and the names of all classes."""
    for row, target in enumerate(things):
        if not isinstance(target, str) or not target.strip():
            raise ValueError(
                f"{what} targets are texts, and row {row} has a missing one ({target!r}): fill it "
                "in"
            )
    classes = columns.classes
    if not classes:
        classes = tuple(sorted(set(things))) if columns.like is None else columns.like.classes
        if unclear := [name for name in classes if is_unclear(name)]:
            raise ValueError(
                f"{what} targets have {unclear[0]!r} in row {things.index(unclear[0])}, which "
                "means a missing value in many files: fill it in, leave the row out, or, if it is "
                "a class, name all classes with classes=[...]"
            )
    if not classes:
        raise ValueError(
            f"{what} targets are texts, those of test are numbers: give numbers of classes, 0 to K "
            "- 1, or texts in both"
        )
    number = {name: place for place, name in enumerate(classes)}
    for row, target in enumerate(things):
        if target not in number:
            whose = "classes=" if columns.classes else "test, which is public and says the classes"
            raise ValueError(
                f"{what} has the class {target!r} in row {row}, which is none of {whose} "
                f"({', '.join(classes)}): correct it, or declare all with classes="
            )
    return torch.tensor([number[target] for target in things]), classes


class Array:
    """N stored rows of one tensor. Numpy keeps them, so processes of one machine share the memory.

    Numpy has no bfloat16: such a tensor stays one.
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values.numpy() if values.dtype != torch.bfloat16 else values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: np.ndarray) -> Any:
        return self._values[rows]


class Fields:
    """N stored rows of several tensors, by name."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self._fields = {name: Array(value.detach().cpu()) for name, value in values.items()}

    def __len__(self) -> int:
        return len(next(iter(self._fields.values())))

    def __getitem__(self, rows: np.ndarray) -> dict[str, Any]:
        return {name: values[rows] for name, values in self._fields.items()}


def white_of(images: np.ndarray) -> float:
    """The number that pixels of more than 8 bits are divided by.

    It is 1 if all are within -1 and 1, else the smallest 2^b - 1 >= 255 that none exceeds.
    """
    largest = float(np.abs(images).max())
    return 1.0 if largest <= 1 else float(2 ** max(8, int(np.ceil(np.log2(largest + 1)))) - 1)


def pixels(images: Tensor) -> Tensor:
    """Pixels of uint8 as float32 in [0, 1]."""
    return images / 255


MAX_SHOWN = 12
"""The most names of columns or classes that are printed."""


def describe_data(
    sizes: Mapping[str, int], data: Mapping[str, Any], more: Mapping[str, str] | None = None
) -> str:
    """The data that a run uses, in one line for people.

    sizes: rows of each split.
    data: as ``Rows.facts``.
    more: what to add about a split, by its name.
    """
    parts = [f"{name}: {size:,} rows{(more or {}).get(name, '')}" for name, size in sizes.items()]
    for kind in ("inputs", "targets", "classes"):
        words = list(data.get(kind, ()))
        count = len(words)
        if kind == "classes":
            words = [f"{number} {name}" for number, name in enumerate(words)]
        if count > MAX_SHOWN:
            words = [*words[: MAX_SHOWN - 1], "...", f"{words[-1]} ({count})"]
        if words:
            parts.append(f"{kind}: {', '.join(words)}")
    templates = {
        "white": "pixels divided by {:g}",
        "background": "transparent images on {}",
        "frame": "frame {} of files that have several",
    }
    parts += [words.format(data[name]) for name, words in templates.items() if name in data]
    return "; ".join(parts)


DISTANCES = (
    "MSELoss",
    "mse_loss",
    "L1Loss",
    "l1_loss",
    "SmoothL1Loss",
    "smooth_l1_loss",
    "HuberLoss",
    "huber_loss",
    "PoissonNLLLoss",
    "poisson_nll_loss",
)
"""Losses of torch in which the number of a class would be an amount."""


def check_targets(rows: Rows, loss: Any, what: str) -> None:
    """Raise ValueError for targets that are not real and finite, or that do not fit the loss."""
    targets = rows.targets
    if targets.is_complex() or targets.dtype == torch.bfloat16:
        raise ValueError(
            f"{what} targets are {targets.dtype}: give real numbers, float32 or integers"
        )
    if targets.is_floating_point() and len(bad := not_finite(targets)):
        raise ValueError(
            f"{what} targets have missing or infinite values, the first in row {int(bad[0])}: fill "
            "them, or leave the rows out"
        )
    name = loss.name if isinstance(loss, PerExampleLoss) else ""
    if rows.classes and name in DISTANCES:
        raise ValueError(
            f"{what} targets are classes ({', '.join(rows.classes[:3])}, ...), and {name} takes "
            "numbers"
        )
    if (
        name in CLASSES
        and (targets.is_floating_point() or targets.dtype == torch.bool)
        and targets.ndim == 1
    ):
        raise ValueError(
            f"{what} targets are {targets.dtype}, and {name} takes the number of each class: give "
            "integers, 0 to K - 1"
        )
    if name in CLASSES and targets.ndim == 2 and targets.shape[1] == 1:
        raise ValueError(
            f"{what} targets have the shape {tuple(targets.shape)}, and {name} takes one number of "
            f"a class a row, ({len(targets)},): give targets[:, 0]"
        )


def check_alike(train: Rows, test: Rows) -> None:
    """Raise ValueError unless both splits have one form.

    It is the classes, the type and shape of targets, and the names and types of inputs. Shapes of
    inputs may differ: a model may take images or texts of several sizes.
    """
    if train.classes != test.classes:
        raise ValueError(
            f"train has the classes {train.classes}, test has {test.classes}: give both numbers, "
            "or both the same names"
        )
    forms = [(str(rows.targets.dtype), tuple(rows.targets.shape[1:])) for rows in (train, test)]
    if forms[0] != forms[1]:
        raise ValueError(
            f"train targets are {forms[0]}, those of test {forms[1]}: give both one type and shape"
        )
    types, types_of_test = _input_types(train), _input_types(test)
    if types != types_of_test:
        raise ValueError(
            f"train inputs are {types}, those of test {types_of_test}: give both one form"
        )


def _input_types(rows: Rows) -> dict[str, str]:
    """The type of each of the model's inputs, by name."""
    first = prepared(rows.inputs, rows.prepare, [0])
    return {name: str(value.dtype) for name, value in fields_of(first)}
