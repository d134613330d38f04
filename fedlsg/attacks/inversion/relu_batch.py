"""Whole batches from a first linear layer followed by ReLU: SPEAR (Dimitrov et al. 2024) on
carriers.

Symbols as in ``received_layer``: G (m, B) gradients at the layer's outputs, X (n, B) inputs. left =
    G (R X)^T (m, r) for carriers, right = G X^T for dense gradients: both have the columns of G as
    their range P (m, B) a basis of that range, so that G = P A for one invertible A (B, B)
ReLU sets G[k, i] = 0 where example i leaves neuron k off. B - 1 rows of P that are off for example
i are orthogonal to column i of A, which is recognized by the many other zeros that P a then has.
Rows are drawn at random: where half of G is zero, a draw hits one of the columns about B times in
2^(B - 1). db = G 1 gives every column its scale, and X^T = (L^T G)^+ right.
Differs from the source: the range comes from dL, whose rank r bounds the batch, so that the (m, n)
gradient is never needed; a column is solved for again from all of its zeros, which takes rounding
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

SUBSETS_AT_ONCE, MOST_DRAWS = 2048, 100_000
"""Subsets of B - 1 rows in one go, so that memory stays small; at the most: 2^B times a few are
enough while half of the neurons are on."""

INDEPENDENT = 1e-3
"""What a unit vector must have outside of the span of others to count as independent of them."""


class Tolerances(NamedTuple):
    """What counts as zero.

    rank: singular values below this share of the largest are noise.
    zero: entries of P a below this share of its largest are zeros.
    sharp: rows whose least singular value is below this share of the largest are too close to
        dependent for their null vector.
    """

    rank: float
    zero: float
    sharp: float


FLOAT64_TOLERANCES, FLOAT32_TOLERANCES = Tolerances(1e-10, 1e-7, 1e-6), Tolerances(1e-6, 2e-4, 3e-2)
"""Of payloads in float64, and in float32."""


def relu_batch(
    observation: Observation, prior: Prior, known: Knowledge, generator: torch.Generator
) -> Guess:
    """All inputs of a batch, (B, *prior.shape), in no particular order; frozen columns are NaN.

    Guarantee: for distinct examples, no noise, B <= r (carriers) or B < min(m, n) (dense), whole
    rows of dL or all of them, and enough neurons whose zeros distinguish the examples, the inputs
    are exact to rounding, whatever the joint clip. B is the rank of what was received; where the
    threat model grants another number the attack refuses.
    ``objective``: the share of (neuron, example) pairs where W x + b of the recovered input
    contradicts a gradient that is not zero, plus the residual of ``right``: near 0 says that the
    batch was found, and needs no truth.
    Raises DoesNotApply, saying why: noise, no bias, per-block clipping, single masked entries,
    frozen rows together with frozen columns, a batch of more than r, no sparse columns (another
    activation).
    """
    layer = received_first_layer(observation, prior.size)
    near = FLOAT64_TOLERANCES if observation.values.dtype == torch.float64 else FLOAT32_TOLERANCES
    _check(observation, layer)
    P, rows = _range_of(layer, near)
    batch = P.shape[1]
    if known.examples not in (None, batch):
        raise DoesNotApply(
            f"what was received has rank {batch}, not {known.examples} as the batch: examples are "
            "repeated, their gradient vanishes, or they are more than the carriers have rank"
        )
    guesses: list[Guess] = []

    def explains(A: Tensor) -> bool:
        guesses.append(_guess(observation, layer, prior, P @ A, rows, near))
        objective = guesses[-1].objective
        return objective is not None and objective < 100 * near.zero

    sparse_columns(P, generator, near, explains)
    return min(guesses, key=lambda guess: guess.objective or 0.0)


def _guess(
    observation: Observation,
    layer: ReceivedLayer,
    prior: Prior,
    columns: Units,
    rows: Bool[Tensor, " m"],
    near: Tolerances,
) -> Guess:
    """The batch whose G has the given columns, up to scale."""
    assert layer.bias is not None
    batch = columns.shape[1]
    G = columns * torch.linalg.lstsq(columns, layer.bias.values[rows]).solution
    G = torch.where(G.abs() > near.zero * G.abs().amax(0), G, 0.0)
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


def _range_of(layer: ReceivedLayer, near: Tolerances) -> tuple[Units, Bool[Tensor, " m"]]:
    received = layer.right if layer.left is None else layer.left
    assert layer.bias is not None
    rows = received.kept.any(1)
    U, S, _ = torch.linalg.svd(
        torch.cat([received.values, layer.bias.values.unsqueeze(1)], 1)[rows], full_matrices=False
    )
    rank = int((near.rank * S[0] < S).sum()) if S[0] > 0 else 0
    limit = min(layer.right.values.shape[0], layer.inputs, int(rows.sum()) - 1)
    if not 1 <= rank <= limit:
        raise DoesNotApply(
            f"what was received has rank {rank}, and at most {limit} examples can be distinguished"
        )
    return U[:, :rank], rows


def _inputs(
    layer: ReceivedLayer, G: Units, rows: Bool[Tensor, " m"]
) -> tuple[Float[Tensor, "n batch"], float]:
    """X from G: through L^T G, or, where rows of dL are frozen, through R X = left^T G^+^T and the
    rows of dR.
    """
    right = layer.right
    if layer.left is None or bool(rows.all()):
        V = G if layer.left is None else layer.outer(G)
        right = (
            right
            if layer.left is not None
            else replace(right, values=right.values[rows], kept=right.kept[rows])
        )
        X = torch.linalg.lstsq(V, right.values).solution
    else:
        assert layer.R is not None
        U = torch.linalg.lstsq(G, layer.left.values[rows]).solution
        Q = torch.linalg.svd(right.values, full_matrices=False)[2][: G.shape[1]]
        X = torch.linalg.lstsq((Q @ layer.R.mT).mT, U.mT).solution.mT @ Q
        V = torch.linalg.lstsq(X.mT, right.values.mT).solution.mT
    residual = float((V @ X - right.values).norm() / right.values.norm())
    X = torch.where(right.kept.any(0).unsqueeze(0), X, torch.nan)
    return X.mT, residual


def _contradictions(
    observation: Observation,
    layer: ReceivedLayer,
    X: Float[Tensor, "n batch"],
    on: Bool[Tensor, "rows batch"],
    rows: Tensor,
) -> float:
    """Share of neurons with G != 0 where W x + b <= 0; 0 where columns of x are unknown (nothing
    can be said).
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
    near: Tolerances,
    accept: Callable[[Float[Tensor, "batch batch"]], bool] = lambda A: True,
) -> Float[Tensor, "batch batch"]:
    """A, whose columns make P A as sparse as ReLU made G, up to order and scale.

    Sums of two columns have zeros, too, where both examples are off, but mostly fewer than either,
    so that the sparsest independent columns are those of G: greedy search finds them (linear
    independence is a matroid). Whenever as many draws again have brought nothing sparser,
    ``accept`` is called; draws go on until it returns True. After the last draw it is called once
    more, and A is returned in any case.
    Raises DoesNotApply where a column has no more zeros than chance.
    """
    batch = P.shape[1]
    norms = P.norm(dim=1)
    live = P[norms > near.zero * norms.max()]
    best, total, needed = P.new_zeros(0, batch), 0, 2 * SUBSETS_AT_ONCE
    for drawn in range(SUBSETS_AT_ONCE, MOST_DRAWS + 1, SUBSETS_AT_ONCE):
        picks = torch.rand(SUBSETS_AT_ONCE, len(live), generator=generator).topk(batch - 1).indices
        best, zeros = _sparsest(live, torch.cat([best, _null_vectors(live[picks], near)]), near)
        if int(zeros.sum()) > total:
            total, needed = int(zeros.sum()), max(needed, 2 * drawn)
        sparse = len(best) == batch and (batch == 1 or int(zeros.sum(1).min()) >= batch)
        if drawn < needed or not sparse:
            continue
        if accept(A := _refined(live, zeros)):
            return A
        needed = 2 * drawn
    if sparse:
        accept(A := _refined(live, zeros))
        return A
    raise DoesNotApply(
        f"no {batch} sparse columns in {drawn} draws: another activation than ReLU, too few "
        "neurons that tell the examples apart, or too large a batch"
    )


def _refined(P: Units, zeros: Bool[Tensor, "batch rows"]) -> Float[Tensor, "batch batch"]:
    """Columns of A from all rows where each is zero, instead of the B - 1 that found it."""
    if P.shape[1] == 1:
        return P.new_ones(1, 1)
    return torch.stack([torch.linalg.svd(P[off])[2][-1] for off in zeros], 1)


def _null_vectors(
    rows: Float[Tensor, "draws fewer batch"], near: Tolerances
) -> Float[Tensor, "k batch"]:
    """The vector that is orthogonal to all rows of a draw, of the draws whose rows are
    independent.
    """
    if rows.shape[1] == 0:
        return rows.new_ones(1, 1)
    _, S, Vh = torch.linalg.svd(rows)
    vectors: Tensor = Vh[S[:, -1] > near.sharp * S[:, 0], -1]
    return vectors


def _sparsest(
    P: Units, directions: Float[Tensor, "k batch"], near: Tolerances
) -> tuple[Float[Tensor, "independent batch"], Bool[Tensor, "independent rows"]]:
    """Of the directions the independent ones with most zeros in P a, sparsest first, and where
    these zeros are.
    """
    response = (directions @ P.mT).abs()
    zeros = response < near.zero * response.amax(1, keepdim=True)
    order = zeros.sum(1).argsort(descending=True, stable=True)
    left = directions[order]
    chosen: list[int] = []
    while len(chosen) < P.shape[1]:
        new = (left.norm(dim=1) > INDEPENDENT).nonzero().flatten()
        if not len(new):
            break
        chosen.append(int(order[new[0]]))
        unit = left[new[0]] / left[new[0]].norm()
        left = left - torch.outer(left @ unit, unit)
    return directions[chosen], zeros[chosen]
