"""What is public about texts, for the matching attacks."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlsg.attacks.text.tokens import Vocabulary


@dataclass(frozen=True, kw_only=True, eq=False)
class TextPrior:
    """What is public about the texts.

    log_frequency: (V,) log p of a token in public texts, -inf for one that no text holds; None: all alike.
    blind: (T,) the guess without a payload, which a likelihood counts changes from; None: drawn at random. Its tokens
        that no text is made of (begin, end: special, or of frequency 0) stay where they are.
    start: (B, T) tokens to start from, ``blind`` where None. candidates: (C, T) the only tokens that are tried at each
        position; None: all that texts are made of.
    """

    vocabulary: Vocabulary
    log_frequency: Float[Tensor, " tokens"] | None = None
    blind: Int64[Tensor, " positions"] | None = None
    start: Int64[Tensor, "batch positions"] | None = None
    candidates: Int64[Tensor, "c positions"] | None = None

    def __post_init__(self) -> None:
        if self.log_frequency is not None and self.log_frequency.shape != (self.vocabulary.size,):
            raise ValueError(
                f"expected a log frequency for {self.vocabulary.size} tokens, got {tuple(self.log_frequency.shape)}"
            )
        for name, tokens in (("blind", self.blind), ("start", self.start), ("candidates", self.candidates)):
            if tokens is not None and tokens.shape[-1:] != (self.vocabulary.length,):
                raise ValueError(f"expected {name} of {self.vocabulary.length} positions, got {tuple(tokens.shape)}")

    def to(self, device: torch.device) -> "TextPrior":
        """The same on a device."""
        tensors = {name: getattr(self, name) for name in ("log_frequency", "blind", "start", "candidates")}
        return replace(self, **{name: t.to(device) for name, t in tensors.items() if t is not None})
