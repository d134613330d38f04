"""DOPPLER: SGD on a low-pass filter of the released updates (Zhang et al. 2024).

Symbols: g_t the noisy gradient, 0 for t < 1      a_1.., b_0.. the filter's coefficients      c_t its answer to g = 1
    m_t = -sum_i a_i m_(t-i) + sum_i b_i g_(t-i)      c_t alike, of ones      W <- W - lr (m_t / c_t + decay W)
Dividing by c_t makes the first steps as long as the later ones. A constant gradient passes unchanged, and noise that is
new in every round is averaged over rounds. It is post-processing of noisy values: epsilon is untouched.
``a = (-0.9,)``, ``b = (0.1,)`` is a moving average; ``b = (0.05, 0.05)`` also removes what
alternates from step to step.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

LONG = 1_000
"""Steps after which a stable filter of use in training has settled."""
SMALLEST_GAIN = 1e-6
"""Of a constant gradient, over sum |b|: below it the filter passes changes alone."""


def read_coefficients(text: str) -> tuple[float, ...]:
    """Numbers of a text such as ``"0.05 0.05"`` or ``"-9/11"``. Raises ValueError for anything else."""
    try:
        return tuple(float(Fraction(word)) for word in text.split())
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(f"expected numbers with spaces between them, such as '0.05 0.05', got {text!r}") from None


class StepResponse:
    """c_t of a filter, from t = 1. Raises ValueError for a filter that is not stable, or turns a gradient around."""

    def __init__(self, a: Sequence[float], b: Sequence[float]) -> None:
        self.a, self.b, self._known = tuple(a), tuple(b), list[float]()
        stable = bool((np.abs(np.roots([1.0, *a])) < 1).all())
        passes = sum(b) > SMALLEST_GAIN * sum(map(abs, b))
        if not (stable and passes and min(map(self, range(1, LONG + 1))) > 0):
            raise ValueError(
                f"filter_a={self.a}, filter_b={self.b}: expected a stable filter (poles within the unit circle) whose "
                "answer to a constant gradient is positive in every step"
            )

    def __call__(self, t: int) -> float:
        known = self._known
        while len(known) < t:
            before = [known[-i] if i <= len(known) else 0.0 for i in range(1, len(self.a) + 1)]
            past = sum(a * c for a, c in zip(self.a, before, strict=True))
            known.append(sum(self.b[: len(known) + 1]) - past)
        return known[t - 1]


class Doppler(Optimizer):
    """The optimizer. Its memory of a parameter: m1, m2, ... and g1, g2, ..., the latest first, and the steps so far."""

    def __init__(
        self, params: Any, *, lr: float, a: Sequence[float], b: Sequence[float], weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.response = StepResponse(a, b)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        a, b = self.response.a, self.response.b
        outputs, inputs = [f"m{i + 1}" for i in range(len(a))], [f"g{i}" for i in range(1, len(b))]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                own = self.state[p]
                if not own:
                    own |= {"step": torch.tensor(0.0)} | {name: torch.zeros_like(p) for name in (*outputs, *inputs)}
                own["step"] += 1
                m = b[0] * p.grad
                for factor, name in [*zip([-x for x in a], outputs, strict=True), *zip(b[1:], inputs, strict=True)]:
                    m.add_(own[name], alpha=factor)
                for names, newest in ((outputs, m), (inputs, p.grad)):
                    values = [newest.clone(), *(own[name] for name in names[:-1])]
                    own |= dict(zip(names, values, strict=False))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(m, alpha=-group["lr"] / self.response(int(own["step"])))
