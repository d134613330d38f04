"""What a workload is: the splits of one data set, the models that fit it, and a preset."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor, nn
from torch.nn import functional

from fedlsg.carriers.probe.source import Draw
from fedlsg.choices import choose
from fedlsg.failure import without_exit
from fedlsg.gradients import LossFunction
from fedlsg.turn import alone
from simulations.workloads.base.fresh import fresh
from simulations.workloads.base.synthetic import Pixels

Progress = Callable[[str], None]
Inputs = Tensor | dict[str, Tensor]
"""A model's inputs, batch first: one tensor, or tensors by the name of the argument that takes them."""


class Augment(Protocol):
    """Changes inputs (B, ...) at random, each row by itself: ``draw`` gives one number a row, ``apply`` uses it."""

    def draw(self, count: int, generator: torch.Generator, /) -> Int64[Tensor, " count"]: ...

    def apply(self, inputs: Tensor, drawn: Int64[Tensor, " b"], /) -> Tensor: ...


def silent(line: str) -> None:
    """A progress callback that says nothing."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of data and model next to the workload's name; None is the workload's default.

    A loader refuses, naming the setting, what it does not use; every workload uses what is in EVERYWHERE.
    """

    model: str | None = None
    pretrained: str | None = None
    pretrained_sha256: str | None = None
    train_layers: int | None = None
    features: str | None = None
    feature_norm: str | None = None
    head_width: int | None = None
    dataset: str | None = None
    subset: str | None = None
    input_columns: str | None = None
    label_column: str | None = None
    test_split: str | None = None
    max_length: int | None = None
    train_rows: int | None = None
    holdout: float | None = None
    data_root: str | None = None


EVERYWHERE = (
    "model", "pretrained", "pretrained_sha256", "train_rows", "holdout", "features", "feature_norm", "head_width",
)  # fmt: skip
"""Options that every workload reads."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What ``workloads.load`` passes on to the loader of a workload; its docstring says what each field means."""

    data_dir: Path | None
    cache_dir: Path | None
    options: Options
    progress: Progress
    public_only: bool


def refuse_unused(options: Options, *, workload: str, used: tuple[str, ...] = ()) -> None:
    """Raise ValueError, naming the setting, for a given option that the workload does not use, or a private test split.

    ``used`` names those it reads, next to EVERYWHERE.
    """
    for f in fields(Options):
        value = getattr(options, f.name)
        if value is not None and f.name not in (*used, *EVERYWHERE):
            raise ValueError(f"workload {workload} has no use for {f.name}={value!r}: leave it out")
    if options.test_split == "train":
        raise ValueError("expected a test_split other than 'train', which is what the clients hold")


class Stored(Protocol):
    """N stored examples: a (memory-mapped) array, or any object that gives rows by an int64 index array."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Picked:
    """Some rows of stored examples, in a given order, without a copy of them."""

    stored: Stored
    rows: Int64[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Int64[np.ndarray, " b"], /) -> Any:
        return self.stored[self.rows[rows]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Examples of one split, kept as they are stored; only the selected rows are prepared.

    inputs: N stored examples, possibly memory-mapped; never written to.
    labels: the targets. (N,) int64 for classes; otherwise any tensor with one row an example, as the loss takes them.
    prepare: from stored rows to the model's inputs (B, ...), row by row: float32 images, or a dict of padded tokens.
    lengths: (N,) tokens of each example, so that ``order`` can bring equal lengths together; None if all are equal.
    groups: (N,) number of each example's group, by its own length: only examples of one group may share a microbatch
        of a private step (``apart``); None for one group.

    Load a workload by name in every process instead of pickling a split: the pickle would hold every row.
    """

    inputs: Stored
    labels: Shaped[Tensor, "n *target"]
    prepare: Callable[[Any], Inputs]
    lengths: Int64[Tensor, " n"] | None = None
    groups: Int64[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        if self.labels.ndim == 0:
            raise ValueError(f"expected one label an example, got a single {self.labels.dtype} number")
        if not 0 < len(self.inputs) == len(self.labels):
            raise ValueError(
                f"expected as many inputs as labels and one at least, got {len(self.inputs)} and {len(self.labels)}"
            )
        for name, known in (("length", self.lengths), ("group", self.groups)):
            if known is not None and known.shape != (len(self.labels),):
                raise ValueError(f"expected one {name} an example, got {len(known)} for {len(self.labels)}")

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Int64[Tensor, " b"]) -> tuple[Any, Shaped[Tensor, "b *target"]]:
        """Inputs (a tensor (B, ...) or a dict of them) and targets (B, ...) of the given rows, in the given order.

        B = 0 is allowed. Texts are padded to the padded length of the longest row.
        Guarantee: the tensors are fresh copies on the CPU, and the other rows change only the padding of a row.
        Raises:
            TypeError: indices that are not int64 (a boolean mask would select the wrong rows).
            IndexError: an index outside [0, N); a negative one would reach another client's example.
        """
        rows = self._checked(indices)
        return self.prepare(self.inputs[rows.numpy()]), self.labels[rows]

    def order(self, indices: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
        """The same indices, the shortest examples first and ties as given, so that neighbours need little padding.

        Lengths are private: the order must not leave the client. It is not for private steps: see ``apart``.
        """
        rows = self._checked(indices)
        return rows if self.lengths is None else rows[torch.argsort(self.lengths[rows], stable=True)]

    def apart(self, indices: Int64[Tensor, " b"]) -> list[Int64[Tensor, " places"]]:
        """Places of the indices in groups that may share a microbatch, each ascending; one group without ``groups``.

        Guarantee: an example's group depends on that example alone. Private, as ``order`` is.
        """
        rows = self._checked(indices)
        if self.groups is None:
            return [torch.arange(len(rows))]
        own = self.groups[rows]
        return [(own == group).nonzero().squeeze(1) for group in own.unique()]

    def pick(self, indices: Int64[Tensor, " n"]) -> "Split":
        """The split of these rows in this order; only labels are copied."""
        rows = self._checked(indices)
        return Split(
            inputs=Picked(stored=self.inputs, rows=rows.numpy()),
            labels=self.labels[rows],
            prepare=self.prepare,
            lengths=None if self.lengths is None else self.lengths[rows],
            groups=None if self.groups is None else self.groups[rows],
        )

    def _checked(self, indices: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
        if indices.dtype != torch.int64 or indices.ndim != 1:
            raise TypeError(f"expected int64 indices of shape (b,), got {indices.dtype} {tuple(indices.shape)}")
        if len(indices):
            least, most = (int(end) for end in indices.aminmax())
            if not 0 <= least <= most < len(self):
                raise IndexError(f"expected indices in [0, {len(self)}), got {least}..{most}")
        return indices.cpu()


class NoRows(Split):
    """A training split without rows: the server of a deployment sees no training row."""

    def __init__(self) -> None:
        empty = torch.zeros(0, dtype=torch.int64)
        for name, value in (("inputs", empty.numpy()), ("labels", empty), ("prepare", _unavailable), ("lengths", None)):
            object.__setattr__(self, name, value)


def _unavailable(rows: Any) -> Inputs:
    raise ValueError("no training row is loaded here: the clients of a deployment hold them")


Parquet = Callable[[Sequence[Path], Path], Split]
"""Reads parquet files; the decoded or tokenised rows go to a cache folder."""


def cross_entropy(outputs: Any, targets: Tensor) -> Tensor:
    """The loss of workloads with classes, in nats: one value an example, shape (B,)."""
    return functional.cross_entropy(outputs, targets, reduction="none")


GIVEN = "given"
"""The partition that a workload brings as lists of rows."""

Metric = Callable[[Tensor, Tensor], Any]
"""``metric(outputs, targets)`` of all examples of a test split, on the CPU: a number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedWorkload:
    """A data set with the models and settings that suit it.

    test: the public split that accuracy is reported on, under ``test_name``.
    other_tests: more test splits by name, whose accuracies are averaged with it, each with the same weight.
    num_classes: targets are classes 0 to num_classes - 1, and accuracy is measured; None for other targets.
    loss: one value an example, shape (B,). metrics: more numbers that are measured on the test splits, by name.
    models: builders by name, the first is the default; build through ``build_model``.
    classifier: the path of the head in every model, whose last Linear stays dense; None: the model's last Linear.
    augment: changes training inputs at random, or None; never applied to a test split.
    columns: values of the training rows by which clients may be formed, by name (N,).
    parts: rows of each client, for partition=given.
    defaults: the preset, by setting; public constants chosen before the run, never derived from its data.
    method_defaults: what differs from it for a method, by method and setting.
    parquet: reads parquet files of a client's own rows; None if the workload has no such form.
    read: reads a client's own rows from any path, given a cache folder of the client; None if the workload reads
        parquet or .npz files.
    synthetic: public inputs from no data at all, by name, the default first; empty if nothing is known that fits.
    pixels: how images are stored, so that other images can take their form; None for other inputs.
    places: files and folders that the splits were read from, as far as they are known.
    features: what reports say of the public features that the inputs are; None for inputs as they are.
    raw: the workload whose inputs became these features; None for inputs as they are.
    left_out: training rows that train_rows or holdout took away. They are as private as the others.
    normalised: mean and deviation of each column or channel that inputs were normalised by, with normalise=public.
    data: how rows of a user's own were read, for users of the model: columns, classes, scale. All of it public.
    said: the same in one line for the owner of the data, with the number of rows.
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
    parts: Sequence[Tensor] | None = None
    defaults: Mapping[str, object]
    method_defaults: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    parquet: Parquet | None = None
    read: Callable[[Path, Path], Split] | None = None
    synthetic: Mapping[str, Draw] = field(default_factory=dict)
    pixels: Pixels | None = None
    places: tuple[Path, ...] = ()
    features: Mapping[str, Any] | None = None
    raw: "LoadedWorkload | None" = None
    left_out: "tuple[Split, ...]" = ()
    normalised: Mapping[str, list[float]] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""

    def __post_init__(self) -> None:
        if self.test_name in self.other_tests:
            raise ValueError(f"{self.name}: two test splits are named {self.test_name}")
        for name, split in {"train": self.train, **self.tests}.items():
            if isinstance(split, NoRows) or self.num_classes is None:
                continue
            if split.labels.dtype != torch.int64 or split.labels.ndim != 1:
                found = f"{split.labels.dtype} {tuple(split.labels.shape)}"
                raise ValueError(f"{self.name}: expected classes, int64 of shape (n,), as {name} labels, got {found}")
            low, high = int(split.labels.min()), int(split.labels.max())
            if not 0 <= low <= high < self.num_classes:
                raise ValueError(f"{self.name}: {name} labels are in {low}..{high}, expected 0..{self.num_classes - 1}")

    def classes(self, purpose: str) -> int:
        """The number of classes. Raises ValueError, naming what needs them, for other targets."""
        if self.num_classes is None:
            raise ValueError(
                f"{purpose} needs targets that are classes (int64, one an example), which {self.name} has not"
            )
        return self.num_classes

    @property
    def tests(self) -> dict[str, Split]:
        """All test splits by name, ``test`` first."""
        return {self.test_name: self.test, **self.other_tests}

    @property
    def default_model(self) -> str:
        return next(iter(self.models))


def rescale(stored: np.ndarray, offset: Tensor, scale: Tensor) -> Tensor:
    """``(stored - offset) * scale`` in float32; offset and scale broadcast against (B, ...)."""
    return (torch.from_numpy(stored).to(torch.float32) - offset) * scale


def build_model(workload: LoadedWorkload, model_name: str | None = None, seed: int = 0) -> nn.Module:
    """Build a model of the workload, the default one if none is named, on the CPU.

    Guarantee: the initial weights are public: they depend on the model and the seed only, are equal in every
    process, and neither read nor move a global random state. The module is new: what its builder keeps is never
    trained (``fresh``).
    Raises ValueError for an unknown model name or a seed outside [0, 2**63).
    """
    name = workload.default_model if model_name is None else model_name
    builder = choose(f"model of {workload.name}", name, workload.models)
    if not 0 <= seed < 2**63:
        raise ValueError(f"expected a seed in [0, 2**63), got {seed=}")

    def build() -> Any:
        # torch.manual_seed would also reseed every CUDA generator, which fork_rng(devices=[]) does not restore.
        torch.default_generator.manual_seed(seed)
        return builder()

    with alone(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
        try:
            with without_exit():
                made = fresh(build)
        except (ValueError, OSError, ImportError):
            raise
        except Exception as error:
            raise ValueError(
                f"model {name!r} of workload {workload.name} cannot be built: {type(error).__name__}: {error}"
            ) from error
    if not isinstance(made, nn.Module):
        hint = ", such as its field model" if isinstance(getattr(made, "model", None), nn.Module) else ""
        raise ValueError(
            f"model {name!r} of workload {workload.name} is built as {type(made).__name__}: return an nn.Module{hint}"
        )
    return made
