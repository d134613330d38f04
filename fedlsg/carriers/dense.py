"""No carriers: every trained parameter is sent as it is; all of the model is trained, or its head, or its biases."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from fedlsg.carriers.base import Carrier
from fedlsg.frame import Part
from fedlsg.gradients import trainable

BIAS = ".bias"


@dataclass(frozen=True, kw_only=True)
class Dense(Carrier):
    """Gradients unchanged. ``train="classifier"`` freezes everything but the head, ``"biases"`` everything but it and
    the bias terms."""

    kind: ClassVar[str] = "dense"
    dense: ClassVar[bool] = True
    parts: ClassVar[tuple[Part, ...]] = ("dense",)
    train: Literal["all", "classifier", "biases"] = "all"

    def carried(self, model: nn.Module, *, classifier: str | None) -> tuple[str, ...]:
        """None."""
        return ()

    def prepare(self, model: nn.Module, head: str, *, classifier: str | None, seed: int) -> None:
        """Freeze what is not trained. Raises ValueError if the model has no classifier, or no bias terms, to train."""
        if self.train == "classifier":
            if not head:
                raise ValueError(f"{type(model).__name__} has no Linear layer to train as its classifier")
            freeze_all_but(model, (), head)
        if self.train == "biases":
            biases = [
                name for name in trainable(model) if f".{name}".endswith(BIAS) and not name.startswith(head + ".")
            ]
            if not biases:
                raise ValueError(
                    f"{type(model).__name__} has no bias terms to train outside of its classifier {head!r}: choose a "
                    "model whose layers have biases, or method linear-probe"
                )
            freeze_all_but(model, biases, head)


def freeze_all_but(model: nn.Module, kept: "tuple[str, ...] | list[str]", head: str) -> None:
    """Freeze all parameters but those named and those of the module at ``head``."""
    for name, parameter in model.named_parameters():
        if name not in kept and not name.startswith(head + "."):
            parameter.requires_grad_(False)
