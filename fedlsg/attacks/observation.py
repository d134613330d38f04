"""What the adversary sees of one update, what else it knows, and what an attack gives back.

The adversary knows everything public: architecture and weights W_t of the round, L, R, mask, clip,
sigma, Poisson rate, local optimizer. It sees payloads as they were sent. The private batch is in
none of these types, so an attack, which is a function of them, cannot read it; scoring it against
the truth happens elsewhere.
"""

import math
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedlsg.config import check_declared
from fedlsg.frame import Coordinates, Frame
from fedlsg.gradients import LossFunction, trainable
from fedlsg.privacy import Mechanism
from fedlsg.training import LocalTraining

View = Literal["client", "aggregate"]
Assumption = Literal["known", "unknown"]


@dataclass(frozen=True, kw_only=True)
class ThreatModel:
    """Whom the report's numbers are about.

    view: the payload of each client (the server, or an eavesdropper), or only their sum (the server
        behind an ideal secure aggregation).
    labels: whether the adversary knows the labels of the batch.
    examples: whether it knows how many examples are in the batch.
    """

    view: View = "client"
    labels: Assumption = "known"
    examples: Assumption = "known"

    def __post_init__(self) -> None:
        check_declared(self)
        if self.labels == "known" and self.examples == "unknown":
            raise ValueError(
                "known labels say how many examples there are: choose examples='known', or "
                "labels='unknown'"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Knowledge:
    """What a threat model grants about one observation: None where it grants nothing.

    labels: the targets, (B,) classes or (B, ...), in no particular order.
    examples: B, over all clients of the observation.
    """

    labels: Shaped[Tensor, "batch *target"] | None = None
    examples: int | None = None

    def __post_init__(self) -> None:
        if self.examples is not None and self.examples < 1:
            raise ValueError(
                f"expected examples={self.examples} >= 1: nothing was in an empty batch"
            )
        if self.labels is not None and self.examples != len(self.labels):
            raise ValueError(
                f"expected as many labels as examples={self.examples}, got {len(self.labels)}"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """One update, of one client or summed over several, with the public state it was made in.

    model: the public architecture, holding W_t of the round; attacks leave it unchanged.
    loss_fn: the loss of each example, as the clients compute it.
    values: the kept values as received, in the order of ``frame.indices``.
    local: K, local learning rate, expected batch: K > 1 sums the steps of ``client_step``.
    noise_std: deviation of the noise on each value; 0 where none was added.
    class_targets: whether a target is the number of a class, which label rules and soft labels are
    about.
    encoded: whether the model makes public features of its inputs before its first layer.
    """

    model: nn.Module
    loss_fn: LossFunction
    frame: Frame
    values: Float[Tensor, " kept"]
    mechanism: Mechanism
    local: LocalTraining
    noise_std: float
    round: int = 1
    clients: tuple[int, ...] = (0,)
    class_targets: bool = True
    encoded: bool = False

    def __post_init__(self) -> None:
        if self.values.shape != (self.frame.kept,):
            raise ValueError(
                f"expected {self.frame.kept} values of the frame, got shape "
                f"{tuple(self.values.shape)}"
            )
        if not bool(torch.isfinite(self.values).all()):
            raise ValueError("expected finite values: the payload is damaged")
        if not 0 <= self.noise_std < math.inf or not self.clients:
            raise ValueError(
                f"expected 0 <= noise_std={self.noise_std} < inf and at least one of "
                f"{self.clients=}"
            )

    @property
    def blocks(self) -> dict[tuple[str, str], Tensor]:
        """Received blocks by (parameter, part), zero where frozen, the clip's weights taken off."""
        pieces = self.frame.unflatten(self.values)
        return {
            (b.parameter, b.part): piece for b, piece in zip(self.frame.blocks, pieces, strict=True)
        }

    @property
    def kept(self) -> dict[tuple[str, str], Tensor]:
        """Which coordinates of each block were sent: boolean, in the block's shape."""
        pieces = self.frame.split(torch.ones_like(self.values))
        return {
            (b.parameter, b.part): piece > 0
            for b, piece in zip(self.frame.blocks, pieces, strict=True)
        }

    @property
    def expected_examples(self) -> int:
        """The examples that are declared to be in a batch, over all clients; 1 at least."""
        return max(1, round(self.local.expected_batch * len(self.clients)))

    @property
    def weights(self) -> dict[str, Tensor]:
        """W_t: the trainable parameters by name."""
        return {name: p.detach() for name, p in trainable(self.model).items()}

    def in_float64(self) -> "Observation":
        """The same with a float64 copy of model, carriers and values.

        Closed forms then lose nothing to rounding.
        """
        frame = replace(self.frame, coordinates=_as(self.frame, torch.float64))
        return replace(
            self, model=deepcopy(self.model).double(), values=self.values.double(), frame=frame
        )

    def to(self, device: str) -> "Observation":
        """The same with model, frame and values on a device.

        A model on another device is copied.
        """
        model, places = self.model, {p.device.type for p in (self.values, *self.model.parameters())}
        if places == {device}:
            return self
        model = deepcopy(model).to(device)
        return replace(
            self, model=model, values=self.values.to(device), frame=_moved(self.frame, device)
        )


def _moved(frame: Frame, device: str) -> Frame:
    sent = None if frame.sent is None else _moved(frame.sent, device)
    return replace(frame, coordinates=_as(frame, device), sent=sent)


def _as(frame: Frame, kind: str | torch.dtype) -> tuple[Coordinates, ...]:
    """The coordinates with carriers on a device, or in a precision."""
    return tuple(
        c if c.L is None or c.R is None else replace(c, L=c.L.to(kind), R=c.R.to(kind))
        for c in frame.coordinates
    )


class DoesNotApply(ValueError):  # noqa: N818 - reads as the sentence that its text completes
    """The attack has nothing to work on in what was received or granted.

    The text says what is missing.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class Guess:
    """An estimated batch.

    inputs: (B, *shape), floating point with NaN where nothing is known (a frozen column, say), or
    token numbers.
    labels: (B, ...) in the order of ``inputs``, None if they were not requested, or cannot be
    inferred.
    objective: what restarts are chosen by, lower is better; comparable between guesses of one
    attack only.
    unexplained: what of the received values the guess leaves open beyond noise, in 0..1 or more;
    None: not a search.
    scale_open: whether the inputs are known up to sign and scale only.
    note: in words, what the estimate rests on and where it failed.
    """

    inputs: Tensor
    labels: Tensor | None = None
    objective: float | None = None
    unexplained: float | None = None
    scale_open: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if self.inputs.dim() < 1:
            raise ValueError(
                f"expected inputs of shape (batch, *shape), got {tuple(self.inputs.shape)}"
            )
        if self.labels is not None and len(self.labels) != len(self.inputs):
            raise ValueError(f"expected {len(self.inputs)} labels, got {len(self.labels)}")
