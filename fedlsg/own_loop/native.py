"""Made-up rows may be out of range, and one function of torch then reads foreign memory in place of an error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor


@contextmanager
def checked_ctc() -> Iterator[None]:
    """Inside, ``torch.ctc_loss`` raises ValueError for class numbers or lengths that end the process on a CPU."""
    real = torch.ctc_loss

    def checked(log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *rest: Any) -> Tensor:
        time, classes = log_probs.shape[0], log_probs.shape[-1]
        most = targets.shape[-1] if targets.ndim > 1 else len(targets)
        for name, value, top in (
            ("targets", targets, classes - 1), ("input_lengths", input_lengths, time),
            ("target_lengths", target_lengths, most),
        ):  # fmt: skip
            found = torch.as_tensor(value)
            if found.numel() and not 0 <= int(found.min()) <= int(found.max()) <= top:
                raise ValueError(
                    f"ctc_loss: expected {name} from 0 to {top}, got {int(found.min())}..{int(found.max())}"
                )
        if targets.ndim == 1 and int(torch.as_tensor(target_lengths).sum()) > most:
            raise ValueError(f"ctc_loss: expected target_lengths that add up to {most} at most")
        return real(log_probs, targets, input_lengths, target_lengths, *rest)

    with patch.object(torch, "ctc_loss", checked):
        yield
