"""What an attack hands back: its best estimate of the batch, and what it can say about it without the truth."""

from dataclasses import dataclass

from torch import Tensor


class DoesNotApply(ValueError):  # noqa: N818 - reads as the sentence that its text completes
    """The attack has nothing to work on in what was received or granted; the text says what is missing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Guess:
    """An estimated batch.

    inputs: (B, *shape), floating point with NaN where nothing is known (a frozen column, say), or token numbers.
    labels: (B,) in the order of ``inputs``, None if they were not requested, or cannot be inferred.
    objective: what restarts are chosen by, lower is better; comparable between guesses of one attack only.
    squared_error: expected squared error over all known coordinates, where theory predicts one from public values.
    scale_open: whether the inputs are known up to sign and scale only.
    note: in words, what the estimate rests on and where it failed.
    """

    inputs: Tensor
    labels: Tensor | None = None
    objective: float | None = None
    squared_error: float | None = None
    scale_open: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if self.inputs.dim() < 1:
            raise ValueError(f"expected inputs of shape (batch, *shape), got {tuple(self.inputs.shape)}")
        if self.labels is not None and len(self.labels) != len(self.inputs):
            raise ValueError(f"expected {len(self.inputs)} labels, got {len(self.labels)}")
