"""Rounds, sample rate, optimizer and learning rates that need no tuning, from public numbers alone.

Symbols: E epochs (expected passes over the data), T server updates, q Poisson rate of a step, K
local steps a round.

    T = max(40, ceil(E / K))    q = min(1, E / (K T))
    Adam on the noisy gradients, betas (0.5, 0.99), clip norm 1
    learning rate 0.2 / sqrt(T); of fewer than 10 updates 0.02 sqrt(T)
        dense updates: times (64 / fan_in)^(1/4) for a dense layer, and times sqrt(5000 / d) for d
        trained numbers, at most 2; above 5,000 numbers (5000 / d)^(1/4) where no layer is a
        convolution; no such factor where layers are pretrained
        regression: half of it, and the factor of d is at most 1
        pretrained layers: a tenth of it; their new classifier has the whole
    the average of the weights with decay 1 - 5 / T

A linear head on public features sees all rows in each of its 40 updates (E = 40, q = 1), at the
rate 0.2 / sqrt(T) times 10 / length, the length of its rows: what noise does to outputs grows with
that, whatever the number of features is.

Why: let nu be the deviation of the noise in a coordinate of a step. Over T steps of SGD at rate c /
(nu sqrt(T)) the noise alone moves a coordinate by c; the best c is nearly the same in all tasks
that were tried. Adam divides by the root mean square of the gradients, which is nu where noise
dominates. So its rate needs no sigma, N, q or clients. Noise alone moves d numbers by 0.2 sqrt(d)
together: sqrt(5000 / d) keeps that length at the one of 5,000 numbers. That was too much for wide
dense layers, so they have half of the power. The rule reads noisy gradients and public numbers, so
it changes no epsilon; ``benchmarks.accuracy.defaults`` measures.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

EPOCHS = 20.0
"""Passes over the data where nobody gives a number."""
HEAD_EPOCHS = 40.0
"""Of a linear head on public features: LEAST_UPDATES full batches, which cost it little time."""
HEAD_LENGTH = 10.0
"""Length of the rows whose head has the learning rate itself."""
LEAST_UPDATES = 40
"""Updates of the rule, at least: fewer lose accuracy at the same number of passes."""
FEWEST_UPDATES = 20
"""The same with a given sample rate."""
FEW_UPDATES = 10
"""Below, the learning rate falls again (``benchmarks.accuracy.few_rounds``)."""
SCALE = 0.2
"""c: how far the noise alone moves a coordinate over the run."""
REGRESSION = 0.5
"""Factor of c for regression: a squared error depends on all of the noise in the outputs, a class
only on which output is the largest.
"""
PRETRAINED = 0.1
"""Factor of c for layers below a new classifier: more destroys what they have learnt."""
RULE_VALUES = 5000
"""Trained numbers of a model whose learning rate is the rule's own."""
MAX_RATE_FACTOR = 2.0
"""The largest factor of a smaller model."""
FAN_IN = 64
"""The fan-in whose layer has the learning rate itself."""


def auto_schedule(epochs: float, *, local_steps: int = 1) -> tuple[int, float]:
    """Rounds T and sample rate q of a step for ``epochs`` expected passes.

    T is 40 or more.
    """
    rounds = max(LEAST_UPDATES, math.ceil(epochs / local_steps))
    return rounds, min(1.0, epochs / (local_steps * rounds))


def auto_rounds(epochs: float, sample_rate: float, *, local_steps: int = 1) -> int:
    """Rounds for ``epochs`` passes at a given sample rate; 20 or more."""
    return max(FEWEST_UPDATES, math.ceil(epochs / (local_steps * sample_rate)))


def auto_server(
    updates: int,
    *,
    dense: bool,
    size: float = 1.0,
    regression: bool = False,
    pretrained: bool = False,
    new_head: bool = True,
    row_length: float | None = None,
) -> Mapping[str, Any]:
    """Settings of ``ServerOptimizer`` for T = ``updates`` server updates.

    dense: whether all updates are. Only then layers differ in rate, and size counts: other methods
        were measured without either.
    size: the model's ``size_factor``.
    regression: whether targets are numbers.
    pretrained: whether the layers are, except a new classifier if ``new_head``.
    row_length: of the inputs of a linear head on features, which has no other factor; None for
        another model.
    """
    # with few updates, moving by all of c would take steps at which no network learns
    rate = SCALE * min(1 / math.sqrt(updates), math.sqrt(updates) / FEW_UPDATES)
    rate *= REGRESSION if regression else 1.0
    dense = dense and row_length is None
    if row_length is not None:
        rate *= HEAD_LENGTH / row_length
    elif dense and not pretrained:
        rate *= min(1.0, size) if regression else size
    head_rate = {}
    if pretrained and new_head:
        head_rate["classifier_learning_rate"] = float(f"{rate:.4g}")
    return {
        "optimizer": "adam",
        "optimizer_options": "betas=0.5 0.99",
        "learning_rate": float(f"{rate * (PRETRAINED if pretrained else 1.0):.4g}"),
        **head_rate,
        "layer_rates": "fan-in" if dense else "equal",
        "ema": float(f"{max(0.0, 1 - 5 / updates):.4g}"),
    }


def size_factor(trained: Iterable[Tensor]) -> float:
    """Learning rate of a model with these parameters over that of a model of 5,000 numbers."""
    parameters = list(trained)
    values = max(1, sum(p.numel() for p in parameters))
    dense = values > RULE_VALUES and all(p.ndim < 3 for p in parameters)
    return min(MAX_RATE_FACTOR, float((RULE_VALUES / values) ** (0.25 if dense else 0.5)))


def fan_in_factor(fan_in: int) -> float:
    """Learning rate of a layer over that of a layer with 64 inputs a unit: (64 / fan_in)^(1/4)."""
    return float((FAN_IN / fan_in) ** 0.25)
