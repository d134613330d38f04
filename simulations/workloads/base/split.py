"""The examples of one split, kept as they are stored; their batches; and what guessing reaches.

Chance is the better accuracy of uniform guessing and of always predicting the most frequent class.
Both are known from the public test splits alone. ``beats_chance`` decides whether an accuracy is
above it.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from fedlsg.randomness import public_generator

Inputs = Tensor | dict[str, Tensor]
"""A model's inputs, batch first: one tensor, or tensors by the name of the model's argument."""


class Augment(Protocol):
    """Changes inputs (B, ...) at random, each row by itself.

    ``draw`` gives one number for each row, and ``apply`` uses it.
    """

    def draw(self, count: int, generator: torch.Generator, /) -> Int64[Tensor, " count"]: ...

    def apply(self, inputs: Tensor, drawn: Int64[Tensor, " b"], /) -> Tensor: ...


class Stored(Protocol):
    """N stored examples: an array, or any object that gives rows for an int64 array of numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Picked:
    """Some rows of stored examples, by their numbers in order, without a copy of them."""

    stored: Stored
    rows: Int64[np.ndarray, " n"]

    @property
    def in_files(self) -> bool:
        """Whether rows are decoded from files each time that they are read."""
        return bool(getattr(self.stored, "in_files", False))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Int64[np.ndarray, " b"], /) -> Any:
        return self.stored[self.rows[rows]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Examples of one split, kept as they are stored; only the selected rows are prepared.

    inputs: N stored examples, possibly memory-mapped; never written to.
    labels: the targets. (N,) int64 for classes; otherwise any tensor with one row an example, as
    the loss takes them.
    prepare: makes the model's inputs (B, ...) of stored rows, row by row: float32 images, or a dict
        of padded tokens.
    lengths: (N,) tokens of each example, so that ``order`` can bring equal lengths together; None
    if all are equal.
    groups: (N,) number of each example's group, which its own length decides. Only examples of one
        group may share a microbatch of a private step (``apart``). None for one group.
    drawn: whether rows drew random numbers while they were read. Read again, they differ.
    columns: other values of a deployed client's own rows, by name (N,). Other splits have them in
        ``LoadedWorkload``.
    encoded_from: the same examples as an encoder reads them, if inputs are features; else None.

    Load a workload by name in every process instead of pickling a split: the pickle would hold
    every row.
    """

    inputs: Stored
    labels: Shaped[Tensor, "n *target"]
    prepare: Callable[[Any], Inputs]
    lengths: Int64[Tensor, " n"] | None = None
    groups: Int64[Tensor, " n"] | None = None
    drawn: bool = False
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    encoded_from: "Split | None" = None

    def __post_init__(self) -> None:
        if self.labels.ndim == 0:
            raise ValueError(
                f"expected one label an example, got a single {self.labels.dtype} number"
            )
        if not 0 < len(self.inputs) == len(self.labels):
            raise ValueError(
                f"expected as many inputs as labels and one at least, got {len(self.inputs)} and "
                f"{len(self.labels)}"
            )
        for name, values in (("length", self.lengths), ("group", self.groups)):
            if values is not None and values.shape != (len(self.labels),):
                raise ValueError(
                    f"expected one {name} an example, got {len(values)} for {len(self.labels)}"
                )

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Int64[Tensor, " b"]) -> tuple[Any, Shaped[Tensor, "b *target"]]:
        """Inputs (a tensor (B, ...) or a dict of them) and targets (B, ...) of the given rows, in
        the given order.

        B = 0 is allowed. Texts are padded to the padded length of the longest row.
        Guarantee: the tensors are fresh copies on the CPU, and the other rows change only the
        padding of a row.
        Raises: TypeError: indices that are not int64 (a boolean mask would select the wrong rows).
            IndexError: an index outside [0, N); a negative one would reach another client's
            example.
        """
        rows = self._checked(indices)
        return self.prepare(self.inputs[rows.numpy()]), self.labels[rows]

    def order(self, indices: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
        """The same indices, the shortest examples first, so that neighbours need little padding.

        Equal lengths keep their order. Lengths are private: the order must not leave the client.
        It is not for private steps: see ``apart``.
        """
        rows = self._checked(indices)
        if self.lengths is None:
            return rows
        return rows[torch.argsort(self.lengths[rows], stable=True)]

    def apart(self, indices: Int64[Tensor, " b"]) -> list[Int64[Tensor, " places"]]:
        """The places in ``indices`` of each group of examples that may share a microbatch.

        Places of a group are ascending. Without ``groups`` there is one group.
        Guarantee: an example's group depends on that example alone. It is private, as ``order`` is.
        """
        rows = self._checked(indices)
        if self.groups is None:
            return [torch.arange(len(rows))]
        groups = self.groups[rows]
        return [(groups == group).nonzero().squeeze(1) for group in groups.unique()]

    def pick(self, indices: Int64[Tensor, " n"]) -> "Split":
        """The split of these rows in this order; only labels are copied."""
        rows = self._checked(indices)
        return Split(
            inputs=Picked(stored=self.inputs, rows=rows.numpy()),
            labels=self.labels[rows],
            prepare=self.prepare,
            lengths=None if self.lengths is None else self.lengths[rows],
            groups=None if self.groups is None else self.groups[rows],
            drawn=self.drawn,
            encoded_from=None if self.encoded_from is None else self.encoded_from.pick(rows),
        )

    def _checked(self, indices: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
        """The indices on the CPU. Raises as ``batch``."""
        if indices.dtype != torch.int64 or indices.ndim != 1:
            raise TypeError(
                f"expected int64 indices of shape (b,), got {indices.dtype} {tuple(indices.shape)}"
            )
        if len(indices):
            least, most = (int(end) for end in indices.aminmax())
            if not 0 <= least <= most < len(self):
                raise IndexError(f"expected indices in [0, {len(self)}), got {least}..{most}")
        return indices.cpu()


class NoRows(Split):
    """A training split without rows: the server of a deployment sees no training row."""

    def __init__(self) -> None:
        # not that of Split, which refuses a split without rows; its fields are frozen
        empty = torch.zeros(0, dtype=torch.int64)
        for name, value in (
            ("inputs", empty.numpy()),
            ("labels", empty),
            ("prepare", _unavailable),
            ("lengths", None),
            ("columns", {}),
        ):
            object.__setattr__(self, name, value)


HOLDOUT = "holdout"
"""The name of a test split of held-out rows."""


def hold_out(
    size: int, share: float, name: str
) -> tuple[Int64[Tensor, " kept"], Int64[Tensor, " held"]]:
    """Numbers of the rows that are kept, and of those that are held out, both ascending.

    Held out are round(share size) rows of a fixed public permutation.
    Raises ValueError, with the workload's ``name``, for a share that leaves one side empty.
    """
    count = round(share * size) if 0 < share < 1 else 0
    if not 0 < count < size:
        raise ValueError(
            f"expected 0 < holdout={share} < 1, with one row at least on either side of the {size} "
            f"training rows of {name}"
        )
    rows = permutation("holdout", size)
    return rows[count:].sort().values, rows[:count].sort().values


def permutation(purpose: str, size: int) -> Int64[Tensor, " n"]:
    """A public order of rows, which depends on their number and on the purpose alone."""
    return torch.randperm(size, generator=public_generator(0, "workload", purpose))


def _unavailable(rows: Any) -> Inputs:
    raise ValueError("no training row is loaded here: the clients of a deployment hold them")


def rescale(stored: np.ndarray, offset: Tensor, scale: Tensor) -> Tensor:
    """``(stored - offset) * scale`` in float32; offset and scale broadcast against (B, ...)."""
    scaled = torch.from_numpy(stored).to(torch.float32, copy=True)
    return scaled.sub_(offset).mul_(scale)  # in place: new memory takes as long as the computation


def scale_of(prepare: Callable[..., Any]) -> Mapping[str, Any] | None:
    """Offset and scale of inputs ``(stored - offset) * scale``, as lists or numbers.

    None for another function.
    """
    if not (isinstance(prepare, partial) and prepare.func is rescale):
        return None
    offset, scale = prepare.keywords["offset"], prepare.keywords["scale"]
    return {"offset": offset.tolist(), "scale": scale.tolist()}


def by_channel(mean: Sequence[float], std: Sequence[float]) -> Callable[[np.ndarray], Tensor]:
    """A ``prepare``: (pixel / 255 - mean) / std, float32, of images (B, channels, ...) of 8 bits.

    It is computed as (pixel - 255 mean) / (255 std).
    """
    offset, scale = (255 * torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    return partial(rescale, offset=offset, scale=1 / scale)


RESIDENT_BYTES = 2**30
"""The most bytes of a split that stays on a device.

CIFAR-10's training images have 0.61e9 in float32.
"""
RESIDENT_SHARE = 8
"""A split takes at most 1 / 8 of the device's free memory: several workers may share a GPU."""
AT_ONCE = 4096
"""Rows that are prepared at once while a split is copied."""

Fetch = Callable[[Int64[Tensor, " b"]], tuple[Any, Int64[Tensor, " b"]]]
"""Gives the inputs and targets of rows, by their numbers, on a device."""


def to_device(inputs: Inputs, device: str) -> Inputs:
    """Inputs of a batch on a device: a tensor, or every tensor of a dict."""
    if isinstance(inputs, Tensor):
        return sent(inputs, device)
    return {name: sent(tensor, device) for name, tensor in inputs.items()}


def sent(t: Tensor, device: str) -> Tensor:
    """A tensor on a device. From the CPU to CUDA it goes through page-locked memory, and nothing
    waits for it.

    Kernels that are started later wait on the device. Torch keeps the page-locked copy until it has
    been read.
    """
    if device == "cuda" and t.device.type == "cpu" and t.numel():
        return t.pin_memory().to(device, non_blocking=True)
    return t.to(device)


def fetcher(split: Split, device: str) -> Fetch:
    """``split.batch``, with its results on ``device``.

    A small split of one tensor an example is copied to CUDA once, whole; batches are then taken
    there.
    Guarantee: the numbers are those of ``split.batch``, and it raises as that does.
    """
    if device == "cpu":
        return split.batch
    if (inputs := _resident(split, device)) is None:
        return lambda rows: _batch(split, rows, device)
    labels = sent(split.labels, device)

    def take(rows: Int64[Tensor, " b"]) -> tuple[Inputs, Int64[Tensor, " b"]]:
        places = sent(split.order(rows), device)  # lengths are equal: the order is the given one
        return inputs[places], labels[places]

    return take


def _batch(
    split: Split, rows: Int64[Tensor, " b"], device: str
) -> tuple[Inputs, Int64[Tensor, " b"]]:
    """A batch of the split, on the device."""
    inputs, targets = split.batch(rows)
    return to_device(inputs, device), sent(targets, device)


def _resident(split: Split, device: str) -> Tensor | None:
    """All inputs on the device; None for a split that cannot stay there.

    Texts cannot, because they are padded batch by batch. Nor can a split that is too large.
    """
    first, _ = split.batch(torch.zeros(1, dtype=torch.int64))
    if split.lengths is not None or not isinstance(first, Tensor):
        return None
    free, _ = torch.cuda.mem_get_info()
    if first.nbytes * len(split) > min(RESIDENT_BYTES, free // RESIDENT_SHARE):
        return None
    whole = torch.empty((len(split), *first.shape[1:]), dtype=first.dtype, device=device)
    for rows in torch.arange(len(split)).split(AT_ONCE):
        inputs, _ = split.batch(rows)
        assert isinstance(inputs, Tensor)
        whole[int(rows[0]) : int(rows[-1]) + 1] = sent(inputs, device)
    return whole


STANDARD_ERRORS = 3.0
"""An accuracy is above chance if it is higher by more than this many standard errors."""


@dataclass(frozen=True, kw_only=True)
class Chance:
    """What guessing reaches on a workload's test splits.

    num_classes: uniform guessing has the accuracy 1 / num_classes.
    majority_share: accuracy of the best constant prediction, over the test splits with equal
        weights.
    test_examples: the number of examples of a single test split whose accuracy would have the same
        variance; for one test split, its size.
    """

    num_classes: int
    majority_share: float
    test_examples: float

    @property
    def level(self) -> float:
        """The larger accuracy of the two."""
        return max(1 / self.num_classes, self.majority_share)


def chance_of(tests: Mapping[str, Split], num_classes: int) -> Chance:
    """Chance on a workload's test splits, whose accuracies are averaged with equal weights."""
    shares = [
        torch.bincount(split.labels, minlength=num_classes).double() / len(split)
        for split in tests.values()
    ]
    # the mean of k accuracies, each with variance v / N_i, has the variance v sum(1 / N_i) / k^2
    effective_size = len(tests) ** 2 / sum(1 / len(split) for split in tests.values())
    return Chance(
        num_classes=num_classes,
        majority_share=float(torch.stack(shares).mean(0).max()),
        test_examples=effective_size,
    )


def standard_error(accuracies: Sequence[float], chance: Chance) -> float:
    """Standard error of the mean accuracy of n seeds: sqrt(sd^2 / n + v / N).

    sd^2 is the sample variance over seeds; it is not known for n = 1, and counts as 0.
    v = a (1 - a) is the variance of one of the N test examples. Of the accuracy that was reached
    and chance, a is the one with the larger v. All seeds share one test split, so more seeds shrink
    the first part only.
    """
    mean, n = statistics.fmean(accuracies), len(accuracies)
    between = statistics.variance(accuracies) / n if n > 1 else 0.0
    binomial = max(a * (1 - a) for a in (mean, chance.level)) / chance.test_examples
    return math.sqrt(between + binomial)


def beats_chance(accuracies: Sequence[float], chance: Chance) -> bool:
    """Whether the mean accuracy is more than three standard errors above chance."""
    error = standard_error(accuracies, chance)
    return statistics.fmean(accuracies) - chance.level > STANDARD_ERRORS * error
