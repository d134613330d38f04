"""Second moments of the probes' gradients, layer by layer: A = sum g^T g and B = sum g g^T.

Symbols: dW (m, n) the gradient of one example in a weight, w one over the squared norm of its
gradient in all parameters, g = w^(1/2) dW; T positions of the example, X (T, n) and G (T, m) the
factors of dW = G^T X.

The sums of one layer are computed in the cheaper of two ways:
    dense   dW is formed:        A = sum w dW^T dW             B = sum w dW dW^T
    gram    dW is never formed:  A = sum w X^T (G G^T) X       B = sum w G^T (X X^T) G
                                 |dW|^2 = <G G^T, X X^T>
Multiplications of an example: m n (T + m + n) in the first way, T (2 T (m + n) + m^2 + n^2) in the
second. Both have about the same speed on a CPU (100 to 200 GFLOP/s), so the smaller count decides.

The probes pass in microbatches. As w needs the example's norm in all layers, each layer first gives
squared norms and keeps what its sums need (``Kept``); then come the sums.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedlsg.frame import Coordinates, Frame, make_blocks
from fedlsg.gradients import (
    Batch,
    Factors,
    GhostGradients,
    LossFunction,
    batch_size,
    check,
    factored_gradients,
    trainable,
)
from fedlsg.tensors import each

Kernels = Float[Tensor, "batch t t"]
PerExample = Float[Tensor, " batch"]

CANCELLED = 1e-3
"""Lower bound on |dW| as a share of |G| |X|: a smaller one cannot be computed from Gram matrices in
float32.
"""
BLOCKS = 4
"""Block rows of a large symmetric product, each computed from the diagonal on: 5/8 of the products.
"""
BLOCKED_FROM = 256
"""Rows from which a symmetric product is large."""

SPARSE = 0.75
"""Share of positions with a gradient from which selecting them costs more than it saves."""


class Examples:
    """What one layer keeps of a microbatch: fields are tensors whose first axis is the examples."""

    def select(self, chosen: Bool[Tensor, " batch"]) -> Self:
        """The chosen examples."""
        return type(self)(*(tensor[chosen] for tensor in vars(self).values()))


@dataclass(frozen=True, eq=False)
class Dense(Examples):
    """The way dense: dW of each example."""

    gradients: Float[Tensor, "batch m n"]

    def squares(self) -> PerExample:
        """Squared norms, in float64."""
        return _norms(self.gradients).square()

    def sums(self, weights: PerExample) -> tuple[Float[Tensor, "n n"], Float[Tensor, "m m"]]:
        """A and B."""
        scaled = self.gradients * weights.view(-1, 1, 1)
        A = symmetric_product(scaled.flatten(0, 1), self.gradients.flatten(0, 1))
        B = symmetric_product(scaled.mT.flatten(0, 1), self.gradients.mT.flatten(0, 1))
        return A, B


@dataclass(frozen=True, eq=False)
class Gram(Examples):
    """The way gram: the factors of each example, and GG = G G^T and XX = X X^T."""

    G: Float[Tensor, "batch t m"]
    X: Float[Tensor, "batch t n"]
    GG: Kernels
    XX: Kernels

    def squares(self) -> PerExample:
        """Squared norms, in float64, at least CANCELLED^2 |G|^2 |X|^2."""
        GG, XX = self.GG.flatten(1).double(), self.XX.flatten(1).double()
        # |G|^2 and |X|^2 are the traces
        G2, X2 = (K.diagonal(dim1=1, dim2=2).double().sum(1) for K in (self.GG, self.XX))
        squares: Tensor = torch.linalg.vecdot(GG, XX)
        return torch.maximum(squares, CANCELLED**2 * G2 * X2)

    def sums(self, weights: PerExample) -> tuple[Float[Tensor, "n n"], Float[Tensor, "m m"]]:
        """A and B."""
        reached = self.GG.diagonal(dim1=1, dim2=2).flatten() != 0
        scales = weights.view(-1, 1, 1)
        A = weighted(self.GG * scales, self.X, reached)
        B = weighted(self.XX * scales, self.G, reached)
        return A, B


Kept = Dense | Gram


def keep(factors: Factors) -> Kept:
    """What the sums of one layer need, in float32, in the cheaper way."""
    T, m, n = factors.sizes
    if not factors.is_product or not gram_is_cheaper(T, m, n):
        return Dense(factors.dense().float())
    G, X = (t.float().contiguous() for t in factors.rows())
    return Gram(G, X, inner_products(G), inner_products(X))


def gram_is_cheaper(T: int, m: int, n: int) -> bool:
    """Whether the way gram needs fewer multiplications."""
    return T * (2 * T * (m + n) + m * m + n * n) < m * n * (T + m + n)


def kept_numbers(factors: Factors) -> int:
    """Numbers that one layer keeps of one example."""
    T, m, n = factors.sizes
    gram = factors.is_product and gram_is_cheaper(T, m, n)
    return T * (m + n) + (2 * T * T if gram else m * n)


def inner_products(F: Float[Tensor, "batch t k"]) -> Kernels:
    """F F^T of every example."""
    return torch.linalg.vecdot(F, F).unsqueeze(2) if F.shape[1] == 1 else F @ F.mT


def weighted(
    K: Kernels, F: Float[Tensor, "batch t k"], reached: Bool[Tensor, " batch_t"]
) -> Float[Tensor, "k k"]:
    """The sum of F^T K F over the examples, K symmetric.

    ``reached``: positions with a gradient other than zero. All others, such as padding, have a zero
    row in K or in F, and are left out if they are many.
    """
    KF = K * F if F.shape[1] == 1 else K @ F
    rows, others = KF.flatten(0, 1), F.flatten(0, 1)
    if reached.count_nonzero() < SPARSE * len(reached):
        rows, others = rows[reached], others[reached]
    return symmetric_product(rows, others)


def symmetric_product(
    Y: Float[Tensor, "rows k"], X: Float[Tensor, "rows k"]
) -> Float[Tensor, "k k"]:
    """Y^T X, which the caller knows to be symmetric: only the blocks above the diagonal are
    computed.
    """
    size = X.shape[1]
    if size < BLOCKED_FROM:
        return Y.mT @ X
    edges = [size * i // BLOCKS for i in range(BLOCKS + 1)]
    product = X.new_empty(size, size)
    for start, stop in itertools.pairwise(edges):
        part = Y[:, start:stop].mT @ X[:, start:]
        product[start:stop, start:] = part
        product[stop:, start:stop] = part[:, stop - start :].mT
    return product


FIRST_SIZE = 2
"""Examples of the first microbatch, which shows how much one example needs."""
MAX_SIZE = 128
"""Most examples of every other microbatch."""
MAX_NUMBERS = 2**25
"""Most numbers that all layers keep of a microbatch (134 MB)."""
SMALLEST_SQUARE = 1e-30
"""Squared norm up to which a gradient counts as zero: its products are too small for float32."""


class Moments(NamedTuple):
    """A = sum g^T g and B = sum g g^T of one weight, in float32; a kernel is flattened."""

    A: Float[Tensor, "n n"]
    B: Float[Tensor, "m m"]


def second_moments(
    model: nn.Module, loss_fn: LossFunction, inputs: Batch, targets: Batch, carried: Sequence[str]
) -> dict[str, Moments]:
    """A and B of every carried weight over a batch of probes, by name, on the weight's device.

    ``inputs`` and ``targets`` as in ``per_example_gradients``; the model is in evaluation mode.
    Products and sums are in float32, norms in float64. A probe whose gradient is zero or not finite
    adds nothing.
    Guarantees: A and B have one trace. The same arguments give the same bits on one kind of
    processor with one number of threads. The model is not changed. Memory does not grow with the
    number of probes.
    Raises ValueError if no probe has a finite gradient other than zero, and what
    ``per_example_gradients`` raises.
    """
    frame = dense_frame(model)
    checked = check(model, frame)
    moments = {name: _zeros(W) for name, W in checked.items() if name in carried}
    count = batch_size(inputs, targets)
    start, size, used = 0, FIRST_SIZE, 0
    while start < count:
        x, y = (part_of(batch, start, start + size) for batch in (inputs, targets))
        gradients = factored_gradients(
            model, loss_fn, x, y, frame, factored=carried, checked=checked
        )
        named = dict(zip(checked, gradients, strict=True))
        del gradients
        start += size
        size = _next_size(named.values())
        used += _add(moments, named)
    if not used:
        raise ValueError(
            f"none of the {count} probes has a finite gradient other than zero: the carriers would "
            "be arbitrary; check the weights (did training diverge?), the probe's inputs and the "
            "loss"
        )
    return moments


def dense_frame(model: nn.Module) -> Frame:
    """The frame of dense gradients of all trainable parameters."""
    coordinates = tuple(
        Coordinates(name=name, shape=tuple(W.shape)) for name, W in trainable(model).items()
    )
    return Frame(coordinates=coordinates, blocks=make_blocks(coordinates))


def _zeros(W: Tensor) -> Moments:
    """The moments of no example."""
    sizes = W.shape[1:].numel(), W.shape[0]
    return Moments(*(torch.zeros(k, k, device=W.device) for k in sizes))


def part_of(batch: Batch, start: int, stop: int) -> Batch:
    """Rows ``start`` to ``stop`` of a batch."""
    part: Batch = each(batch, lambda t: t[start:stop])
    return part


def _add(
    moments: Mapping[str, Moments], gradients: dict[str, Tensor | GhostGradients | Factors]
) -> int:
    """Add the sums of one microbatch to ``moments``, and return how many examples were used.

    It empties ``gradients``, so that no two forms of a gradient are in memory.
    """
    layers: dict[str, Kept] = {}
    squares = []
    for name in list(gradients):
        gradient = gradients.pop(name)
        if isinstance(gradient, Factors):
            layers[name] = keep(gradient)
            squares.append(layers[name].squares())
        elif isinstance(gradient, GhostGradients):
            squares.append(gradient.norms().square())
        else:
            squares.append(_norms(gradient).square())
    total = torch.stack(squares).sum(0)
    usable = total.isfinite() & (total > SMALLEST_SQUARE)
    all_usable = bool(usable.all())
    weights = total[usable].reciprocal().float()
    for name, layer in layers.items():
        chosen = layer if all_usable else layer.select(usable)
        for moment, increase in zip(moments[name], chosen.sums(weights), strict=True):
            moment += increase
    return len(weights)


def _norms(gradient: Float[Tensor, "batch *shape"]) -> PerExample:
    """The norm of each example's gradient, in float64."""
    norms: Tensor = torch.linalg.vector_norm(gradient.flatten(1), dim=1, dtype=torch.float64)
    return norms


def _next_size(gradients: Iterable[object]) -> int:
    """Examples of the next microbatch, from the gradients of this one."""
    of_example = sum(kept_numbers(layer) for layer in gradients if isinstance(layer, Factors))
    return min(MAX_SIZE, max(1, MAX_NUMBERS // max(1, of_example)))
