"""What a workload is: two splits of one data set, the models that fit it, and a preset."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from simulations.choices import choose

Progress = Callable[[str], None]


def silent(line: str) -> None:
    """A progress callback that says nothing."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may say about data and model beside the workload's name; None leaves it to the workload.

    A loader refuses, naming the setting, what it has no use for; ``holdout`` and ``train_rows`` serve every workload.
    """

    model: str | None = None
    pretrained: str | None = None
    train_layers: int | None = None
    dataset: str | None = None
    subset: str | None = None
    input_columns: str | None = None
    label_column: str | None = None
    test_split: str | None = None
    max_length: int | None = None
    train_rows: int | None = None
    holdout: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Examples of one split, kept as they are stored and prepared only for the rows that are asked for.

    inputs: (N, ...) stored examples, possibly memory-mapped; never written to.
    labels: (N,) int64.
    prepare: a row-wise map from stored rows (B, ...) to the model's inputs (B, ...), float32 for images.

    Load a workload by name in every process instead of pickling a split: a pickle holds every row.
    """

    inputs: np.ndarray
    labels: Int64[Tensor, " n"]
    prepare: Callable[[np.ndarray], Tensor]

    def __post_init__(self) -> None:
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            raise ValueError(f"expected int64 labels of shape (n,), got {self.labels.dtype} {tuple(self.labels.shape)}")
        if not 0 < len(self.inputs) == len(self.labels):
            raise ValueError(
                f"expected as many inputs as labels and one at least, got {len(self.inputs)} and {len(self.labels)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Int64[Tensor, " b"]) -> tuple[Tensor, Int64[Tensor, " b"]]:
        """Inputs (B, ...) and targets (B,) of the given rows, in the given order; B = 0 is a batch too.

        Guarantee: the tensors are fresh copies on the CPU, and a row's value does not depend on the other rows.
        Raises:
            TypeError: indices that are not int64 (a mask of booleans would select other rows than it says).
            IndexError: an index outside [0, N); a negative one would reach another client's example.
        """
        if indices.dtype != torch.int64 or indices.ndim != 1:
            raise TypeError(f"expected int64 indices of shape (b,), got {indices.dtype} {tuple(indices.shape)}")
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(self):
            raise IndexError(f"expected indices in [0, {len(self)}), got {int(indices.min())}..{int(indices.max())}")
        rows = indices.cpu()
        return self.prepare(self.inputs[rows.numpy()]), self.labels[rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """A data set with the models and settings that suit it.

    models: builders by name, the first is the default; build through ``build_model``.
    classifier: the path of the output layer in every model (an ``nn.Linear`` that stays dense, never carried).
    defaults: the preset, by setting; public constants chosen before the run, never derived from its data.
    method_defaults: what differs from it for a method, by method and setting.
    Raises ValueError where a label lies outside [0, num_classes).
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    models: Mapping[str, Callable[[], nn.Module]]
    classifier: str = "classifier"
    defaults: Mapping[str, object]
    method_defaults: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for split, labels in (("train", self.train.labels), ("test", self.test.labels)):
            low, high = int(labels.min()), int(labels.max())
            if not 0 <= low <= high < self.num_classes:
                raise ValueError(
                    f"{self.name}: {split} labels lie in {low}..{high}, expected 0..{self.num_classes - 1}"
                )

    @property
    def default_model(self) -> str:
        return next(iter(self.models))


def rescale(stored: np.ndarray, offset: Tensor, scale: Tensor) -> Tensor:
    """``(stored - offset) * scale`` in float32; offset and scale broadcast against (B, ...)."""
    return (torch.from_numpy(stored).to(torch.float32) - offset) * scale


def build_model(workload: Workload, model_name: str | None = None, seed: int = 0) -> nn.Module:
    """Build a model of the workload, the default one if none is named, on the CPU.

    Guarantee: the initial weights are public: they depend on the model and the seed only, are equal in every
    process, and neither read nor move a global random state.
    Raises ValueError for an unknown model name or a seed outside [0, 2**63).
    """
    name = workload.default_model if model_name is None else model_name
    builder = choose(f"model of {workload.name}", name, workload.models)
    if not 0 <= seed < 2**63:
        raise ValueError(f"expected a seed in [0, 2**63), got {seed=}")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would also reseed every CUDA generator, which fork_rng(devices=[]) does not restore.
        torch.default_generator.manual_seed(seed)
        return builder()
