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

Here are data of a user's own as rows: inputs as they are stored, targets, and columns that may form
clients.
"""

import numbers
from collections.abc import Callable, Mapping
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


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How data are read: see ``Workload``. ``more``: columns that form clients. ``classes``: a
    declared list. ``images``: what is taken of each.

    ``texts``: columns that are texts in every file, whatever those of one look like.

    ``seed``: that of a reproducible run, whose rows draw by it; None: secret draws, new each time
    that data are read.
    ``like``: the public rows, whose classes and scale of pixels are taken; None while these are
    read themselves.
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
        """Of the draws of a split's rows. Those of test are public: every process has the same test
        rows.
        """
        if what == "test":
            return reproducible_stream(0, "rows", what)
        return (
            secret_stream() if self.seed is None else reproducible_stream(self.seed, "rows", what)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """``inputs``: N stored examples; ``targets``: (N, ...); ``prepare``: from stored rows to the
    model's inputs.

    ``columns``: other values of the rows, by name (N,).
    ``classes``: names of the classes, if the data say them.
    ``names``, ``target_names``: the columns of inputs and targets.
    ``white``: the value of a file's pixels that is 1, for images of more than 8 bits.
    ``left_out``: what of the data is no input and no target.
    ``drawn``: as in ``Split``.
    ``decoded``: whether the inputs were images of files or of Pillow.
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
        """What a run keeps of how rows were read: public, for it follows from names and from the
        public rows.
        """
        facts = {
            "inputs": list(self.names),
            "targets": list(self.target_names),
            "classes": list(self.classes),
            "white": self.white,
        }
        return {name: value for name, value in facts.items() if value}


def of_stored(stored: Any, targets: Tensor, columns: Columns, what: str, /, **more: Any) -> Rows:
    """Rows of one array, or of a list of things that a transform makes numbers of, once. ``more``:
    fields of ``Rows``.

    Without a transform, unsigned whole numbers of 8 or 16 bits in two dimensions or more an example
    are pixels, which are divided by 255 or by ``white_of`` the public rows.
    """
    if not isinstance(stored, Tensor | np.ndarray) or (
        isinstance(stored, np.ndarray) and stored.dtype.kind in "OUS"
    ):
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
    array = (
        (stored if isinstance(stored, Tensor) else as_tensor(stored, f"{what} inputs"))
        .detach()
        .cpu()
    )
    scale = pixels if array.dtype == torch.uint8 and array.ndim > 2 else None
    prepare = Prepare(scale) if columns.transform is None else Prepare.by(columns.transform, what)
    if array.dtype in (torch.uint8, torch.bool) and array.ndim == 2 and columns.transform is None:
        array = array.float()  # small numbers, which no layer takes as they are
    return Rows(inputs=Array(array), targets=targets, prepare=prepare, **more)


def as_tensor(value: Any, what: str) -> Tensor:
    """An array as a tensor; float64 of numpy, which few models take, as float32. Raises ValueError
    for a value that torch cannot convert to one.
    """
    # of pandas and pyarrow; torch warns
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    # torch can little
    if isinstance(value, np.ndarray) and value.dtype.kind == "u" and value.dtype.itemsize > 1:
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
    return (
        tensor.float()
        if tensor.dtype == torch.float64 and not isinstance(value, Tensor)
        else tensor
    )


def as_targets(value: Any, columns: Columns, what: str) -> tuple[Tensor, tuple[str, ...]]:
    """Targets as a tensor, small integers as int64; and the names of the classes, where targets are
    texts.

    The number of a class is its place among the declared classes, else among those of the public
    rows, in order.
    Raises ValueError, naming the row, for a text that is no class of these, and for a missing one.
    """
    things = (
        value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind in "OUS" else value
    )
    if not (isinstance(things, list | tuple) and any(isinstance(target, str) for target in things)):
        if isinstance(value, np.ndarray) and value.dtype.kind == "O":
            for row, target in enumerate(things):
                if not isinstance(target, numbers.Real):
                    raise ValueError(
                        f"{what} targets have no number in row {row}, {target!r}: fill it in, or "
                        "leave it out"
                    )
            value = np.array(things)
        targets = as_tensor(value, f"{what} targets").detach().cpu()
        return targets.long() if targets.dtype in (
            torch.uint8,
            torch.int8,
            torch.int16,
            torch.int32,
        ) else targets, ()
    for row, target in enumerate(things):
        if not isinstance(target, str) or not target.strip():
            raise ValueError(
                f"{what} targets are texts, and row {row} has a missing one ({target!r}): fill it "
                "in"
            )
    known = columns.classes or (
        columns.like.classes if columns.like is not None else tuple(sorted(set(things)))
    )
    if not known:
        raise ValueError(
            f"{what} targets are texts, those of test are numbers: give numbers of classes, 0 to K "
            "- 1, or texts in both"
        )
    number = {name: place for place, name in enumerate(known)}
    if unknown := next(
        ((row, target) for row, target in enumerate(things) if target not in number), None
    ):
        row, target = unknown
        whose = "classes=" if columns.classes else "test, which is public and says the classes"
        raise ValueError(
            f"{what} has the class {target!r} in row {row}, which is none of {whose} "
            f"({', '.join(known)}): correct it, or declare all with classes="
        )
    return torch.tensor([number[target] for target in things]), known


class Array:
    """N stored rows of one tensor; numpy keeps them, so that processes of one machine share the
    memory.
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
    """What pixels of more than 8 bits are divided by: 1 for those within -1 and 1, else the least
    2^b - 1 >= 255.
    """
    most = float(np.abs(images).max())
    return 1.0 if most <= 1 else float(2 ** max(8, int(np.ceil(np.log2(most + 1)))) - 1)


def pixels(images: Tensor) -> Tensor:
    """From uint8 to [0, 1], float32."""
    return images / 255


SHOWN = 12
"""Most names of columns or classes that are printed."""


def describe_data(
    sizes: Mapping[str, int], data: Mapping[str, Any], more: Mapping[str, str] | None = None
) -> str:
    """What of the data a run uses, in one line. ``data``: as ``Rows.facts``. ``more``: what to say
    of a split.
    """
    parts = [f"{name}: {size:,} rows{(more or {}).get(name, '')}" for name, size in sizes.items()]
    for name in ("inputs", "targets", "classes"):
        if names := list(data.get(name, ())):
            words = (
                [f"{number} {one}" for number, one in enumerate(names)]
                if name == "classes"
                else names
            )
            shown = words if len(names) <= SHOWN else [*words[: SHOWN - 1], "...", words[-1]]
            parts.append(
                f"{name}: {', '.join(shown)}{f' ({len(names)})' if len(names) > SHOWN else ''}"
            )
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
    """Raise ValueError for targets that are not numbers, or that a loss of torch for classes cannot
    take.
    """
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
    """Raise ValueError unless both splits have one form: classes, type and shape of targets, names
    and types of inputs.

    Shapes of inputs may differ: a model may take images or texts of several sizes.
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
    first = [
        {
            name: str(value.dtype)
            for name, value in fields_of(prepared(rows.inputs, rows.prepare, [0]))
        }
        for rows in (train, test)
    ]
    if first[0] != first[1]:
        raise ValueError(
            f"train inputs are {first[0]}, those of test {first[1]}: give both one form"
        )
