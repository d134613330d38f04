"""Whole batches from a first linear layer with ReLU: SPEAR (Dimitrov et al. 2024) for carriers.

Symbols as in ``received_layer``: G (m, B) gradients at the layer's outputs, X (n, B) inputs.
    left = G (R X)^T (m, r) for carriers, right = G X^T for dense gradients. Both have the columns
        of G as their range.
    P (m, B) a basis of that range, so that G = P A for one invertible A (B, B) with columns a_i
ReLU sets G[k, i] = 0 where example i leaves neuron k off. So B - 1 rows of P that are off for
example i are orthogonal to a_i and determine it up to scale. A right a_i shows by the many other
zeros of P a_i. Rows are drawn at random: where half of G is zero, about B of 2^(B - 1) draws hit
one of the columns. db = G 1 gives every column its scale, and X^T = (L^T G)^+ right.
Differs from the source: the range comes from dL, whose rank r bounds the batch, so that the (m, n)
gradient is never needed. A column is solved for again from all of its zeros, which lowers rounding
from 1e-9 to 1e-15.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.inversion.received_layer import ReceivedLayer, received_first_layer
from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation

Units = Float[Tensor, "rows batch"]

SUBSETS_AT_ONCE = 2048
"""Subsets of B - 1 rows that are drawn at once, so that memory stays small."""
MOST_DRAWS = 100_000
"""Subsets that are drawn, at most: a few times 2^B are enough while half of the neurons are on."""
INDEPENDENT = 1e-3
"""A unit vector is independent of others if its part outside of their span is longer than this."""


class Tolerances(NamedTuple):
    """Sizes below which numbers count as zero.

    rank: singular values below this share of the largest are noise.
    zero: entries of P a below this share of its largest are zeros.
    sharp: rows whose least singular value is below this share of the largest are too close to
        dependent for their null vector.
    """

    rank: float
    zero: float
    sharp: float


FLOAT64_TOLERANCES = Tolerances(rank=1e-10, zero=1e-7, sharp=1e-6)
"""Of payloads in float64."""
FLOAT32_TOLERANCES = Tolerances(rank=1e-6, zero=2e-4, sharp=3e-2)
"""Of payloads in float32."""


def relu_batch(
    observation: Observation, prior: Prior, known: Knowledge, generator: torch.Generator
) -> Guess:
    """All inputs of a batch, (B, *prior.shape), in no particular order; frozen columns are NaN.

    Guarantee: the inputs are exact to rounding, whatever the joint clip, for distinct examples
    without noise, with B <= r (carriers) or B < min(m, n) (dense), rows of dL that were sent as a
    whole or not at all, and enough neurons whose zeros distinguish the examples. B is the rank of
    what was received; where the threat model grants another number the attack refuses.
    ``objective``: the share of (neuron, example) pairs where W x + b of the recovered input
    contradicts a gradient that is not zero, plus the residual of ``right``. Near 0 the batch was
    recovered; no truth is needed to see that.
    Raises DoesNotApply with the reason: noise, no bias, per-block clipping, single masked entries,
    frozen rows together with frozen columns, a batch of more than r, no sparse columns (another
    activation).
    """
    layer = received_first_layer(observation, prior.size)
    is_float64 = observation.values.dtype == torch.float64
    tolerances = FLOAT64_TOLERANCES if is_float64 else FLOAT32_TOLERANCES
    _check(observation, layer)
    P, rows = _range_of(layer, tolerances)
    batch = P.shape[1]
    if known.examples not in (None, batch):
        raise DoesNotApply(
            f"what was received has rank {batch}, not {known.examples} as the batch: examples are "
            "repeated, their gradient vanishes, or they are more than the carriers have rank"
        )
    guesses: list[Guess] = []

    def explains(A: Tensor) -> bool:
        guesses.append(_guess(observation, layer, prior, P @ A, rows, tolerances))
        objective = guesses[-1].objective
        return objective is not None and objective < 100 * tolerances.zero

    sparse_columns(P, generator, tolerances, explains)
    return min(guesses, key=lambda guess: guess.objective or 0.0)


def _guess(
    observation: Observation,
    layer: ReceivedLayer,
    prior: Prior,
    columns: Units,
    rows: Bool[Tensor, " m"],
    tolerances: Tolerances,
) -> Guess:
    """The batch whose G has these columns, up to scale, in the ``rows`` that were received."""
    assert layer.bias is not None
    batch = columns.shape[1]
    G = columns * torch.linalg.lstsq(columns, layer.bias.values[rows]).solution  # db = G 1
    G = torch.where(G.abs() > tolerances.zero * G.abs().amax(0), G, 0.0)
    X, residual = _inputs(layer, G, rows)
    wrong = _contradictions(observation, layer, X, G != 0, rows)
    note = f"{batch} examples from the zeros of their ReLUs"
    if wrong:
        note += (
            f"; {wrong:.1%} of the signs of W x + b contradict them: not all of the columns are "
            "those of examples"
        )
    return Guess(inputs=X.mT.reshape(batch, *prior.shape), objective=wrong + residual, note=note)


def _check(observation: Observation, layer: ReceivedLayer) -> None:
    """Raise DoesNotApply if what was received is not enough; see ``relu_batch``."""
    if observation.noise_std > 0:
        raise DoesNotApply(
            "noise fills the zeros that ReLU leaves: no column of G is sparse any more"
        )
    if layer.bias is None or not layer.bias.whole or not layer.scaled_alike:
        raise DoesNotApply(
            "the scale of each example comes from a whole db, clipped by the same factor as dL and "
            "dR"
        )
    if not bool(layer.right.values.any()):
        raise DoesNotApply(
            "L^T dW is zero: nothing of the gradient reaches the carriers (LoRA's B may still be 0)"
        )
    left = layer.right if layer.left is None else layer.left
    if not left.all_or_none(1):
        raise DoesNotApply(
            "single entries of G's range are masked: its rank is not that of the batch"
        )
    if not layer.right.all_or_none(0):
        raise DoesNotApply(
            "single entries of L^T G X^T are masked: its columns cannot be solved for"
        )
    if layer.left is not None and not layer.left.whole and not layer.right.whole:
        raise DoesNotApply(
            "frozen rows of dL hide G there, and frozen columns of dR hide what would make up for "
            "it: B^2 - B numbers that mix the examples stay unknown (one example is not affected)"
        )


def _range_of(layer: ReceivedLayer, tolerances: Tolerances) -> tuple[Units, Bool[Tensor, " m"]]:
    """P in the rows that were received, and which rows these are.

    Raises DoesNotApply for a rank that is no batch size.
    """
    received = layer.right if layer.left is None else layer.left
    assert layer.bias is not None
    rows = received.kept.any(1)
    with_bias = torch.cat([received.values, layer.bias.values.unsqueeze(1)], 1)
    U, S, _ = torch.linalg.svd(with_bias[rows], full_matrices=False)
    rank = int((tolerances.rank * S[0] < S).sum()) if S[0] > 0 else 0
    limit = min(layer.right.values.shape[0], layer.inputs, int(rows.sum()) - 1)
    if not 1 <= rank <= limit:
        raise DoesNotApply(
            f"what was received has rank {rank}, and at most {limit} examples can be distinguished"
        )
    return U[:, :rank], rows


def _inputs(
    layer: ReceivedLayer, G: Units, rows: Bool[Tensor, " m"]
) -> tuple[Float[Tensor, "n batch"], float]:
    """X (NaN in frozen columns) from G, and the relative residual of right = V X^T.

    If all rows of G are known, V = L^T G (G itself for a dense gradient) and X^T = V^+ right. Else,
    with frozen rows of dL, U = (R X)^T = G^+ left. The rows of X^T are in the span of the rows Q of
    right: X^T = Z Q with Z (Q R^T) = U. Then V follows from X.
    """
    right = layer.right
    if layer.left is None:
        right = replace(right, values=right.values[rows], kept=right.kept[rows])
    if layer.left is None or bool(rows.all()):
        V = G if layer.left is None else layer.outer(G)
        Xt = torch.linalg.lstsq(V, right.values).solution
    else:
        assert layer.R is not None
        U = torch.linalg.lstsq(G, layer.left.values[rows]).solution
        Q = torch.linalg.svd(right.values, full_matrices=False)[2][: G.shape[1]]
        Xt = torch.linalg.lstsq((Q @ layer.R.mT).mT, U.mT).solution.mT @ Q
        V = torch.linalg.lstsq(Xt.mT, right.values.mT).solution.mT
    residual = float((V @ Xt - right.values).norm() / right.values.norm())
    Xt = torch.where(right.kept.any(0).unsqueeze(0), Xt, torch.nan)
    return Xt.mT, residual


def _contradictions(
    observation: Observation,
    layer: ReceivedLayer,
    X: Float[Tensor, "n batch"],
    on: Bool[Tensor, "rows batch"],
    rows: Tensor,
) -> float:
    """Share of neurons with G != 0 where W x + b <= 0, among those with G != 0.

    0 where columns of x are unknown, because nothing can be said then.
    """
    if bool(X.isnan().any()):
        return 0.0
    module = observation.model.get_submodule(layer.path)
    with torch.no_grad():
        outputs = module(X.mT.to(next(module.parameters()))).mT.double()[rows]
    return float((on & (outputs <= 0)).sum() / max(1, int(on.sum())))


def sparse_columns(
    P: Units,
    generator: torch.Generator,
    tolerances: Tolerances,
    accept: Callable[[Float[Tensor, "batch batch"]], bool] = lambda A: True,
) -> Float[Tensor, "batch batch"]:
    """A, whose columns make P A as sparse as ReLU made G, up to order and scale.

    Sums of two columns also have zeros, where both examples are off, but mostly fewer than either.
    So the sparsest independent columns are those of G. A greedy choice finds them, because linear
    independence is a matroid.
    accept: is called with A whenever the number of draws has doubled without a sparser A, and after
        the last draw. The search ends when it returns True; A is returned in any case.
    Raises DoesNotApply where a column has no more zeros than chance.
    """
    batch = P.shape[1]
    norms = P.norm(dim=1)
    live = P[norms > tolerances.zero * norms.max()]  # rows of neurons that are on for some example
    columns, most_zeros, next_call = P.new_zeros(0, batch), 0, 2 * SUBSETS_AT_ONCE
    for draws in range(SUBSETS_AT_ONCE, MOST_DRAWS + 1, SUBSETS_AT_ONCE):
        picks = torch.rand(SUBSETS_AT_ONCE, len(live), generator=generator).topk(batch - 1).indices
        candidates = torch.cat([columns, _null_vectors(live[picks], tolerances)])
        columns, zeros = _sparsest(live, candidates, tolerances)
        if int(zeros.sum()) > most_zeros:
            most_zeros, next_call = int(zeros.sum()), max(next_call, 2 * draws)
        sparse = len(columns) == batch and (batch == 1 or int(zeros.sum(1).min()) >= batch)
        if draws < next_call or not sparse:
            continue
        if accept(A := _refine(live, zeros)):
            return A
        next_call = 2 * draws
    if sparse:
        accept(A := _refine(live, zeros))
        return A
    raise DoesNotApply(
        f"no {batch} sparse columns in {draws} draws: another activation than ReLU, too few "
        "neurons that distinguish the examples, or too large a batch"
    )


def _refine(P: Units, zeros: Bool[Tensor, "batch rows"]) -> Float[Tensor, "batch batch"]:
    """A again, each column from all rows of P where it gives zeros, and not from B - 1 of them."""
    if P.shape[1] == 1:
        return P.new_ones(1, 1)
    return torch.stack([torch.linalg.svd(P[off])[2][-1] for off in zeros], 1)


def _null_vectors(
    rows: Float[Tensor, "draws fewer batch"], tolerances: Tolerances
) -> Float[Tensor, "k batch"]:
    """For each draw whose rows are independent, the unit vector that is orthogonal to them."""
    if rows.shape[1] == 0:
        return rows.new_ones(1, 1)
    _, S, Vh = torch.linalg.svd(rows)
    vectors: Tensor = Vh[S[:, -1] > tolerances.sharp * S[:, 0], -1]
    return vectors


def _sparsest(
    P: Units, directions: Float[Tensor, "k batch"], tolerances: Tolerances
) -> tuple[Float[Tensor, "independent batch"], Bool[Tensor, "independent rows"]]:
    """The independent directions a with most zeros in P a, sparsest first, and these zeros."""
    response = (directions @ P.mT).abs()
    zeros = response < tolerances.zero * response.amax(1, keepdim=True)
    order = zeros.sum(1).argsort(descending=True, stable=True)
    remaining = directions[order]  # without their parts in the span of the chosen ones
    chosen: list[int] = []
    while len(chosen) < P.shape[1]:
        independent = (remaining.norm(dim=1) > INDEPENDENT).nonzero().flatten()
        if not len(independent):
            break
        first = independent[0]
        chosen.append(int(order[first]))
        unit = remaining[first] / remaining[first].norm()
        remaining = remaining - torch.outer(remaining @ unit, unit)
    return directions[chosen], zeros[chosen]
