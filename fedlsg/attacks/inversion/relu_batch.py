"""Whole batches from a first linear layer followed by ReLU: SPEAR (Dimitrov et al. 2024) on carriers.

Symbols as in ``received_layer``: G (m, B) gradients at the layer's outputs, X (n, B) inputs.
    left = G (R X)^T (m, r) for carriers, right = G X^T for dense gradients: both have the columns of G as their range
    P (m, B) a basis of that range, so that G = P A for one invertible A (B, B)
ReLU sets G[k, i] = 0 where example i leaves neuron k off. B - 1 rows of P that are off for example i are orthogonal to
column i of A, which is recognized by the many other zeros that P a then has (``sparse_columns``). db = G 1 gives every
column its scale, and X^T = (L^T G)^+ right.
Differs from the source: the range comes from dL, whose rank r bounds the batch, so that the (m, n) gradient is never
needed; a column is solved for again from all of its zeros, which takes rounding from 1e-9 to 1e-15.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedlsg.attacks.guess import DoesNotApply, Guess
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.inversion.received_layer import ReceivedLayer, received_layer
from fedlsg.attacks.inversion.sparse_columns import Search, sparse_columns
from fedlsg.attacks.observation import Knowledge, Observation


def relu_batch(
    seen: Observation, prior: Prior, known: Knowledge, generator: torch.Generator, *, search: Search | None = None
) -> Guess:
    """All inputs of a batch, (B, *prior.shape), in no particular order; frozen columns are NaN.

    Guarantee: for distinct examples, no noise, B <= r (carriers) or B < min(m, n) (dense), whole rows of dL or all of
    them, and enough neurons whose zeros distinguish the examples, the inputs are exact to rounding, whatever the joint
    clip. B is the rank of what was received; where the threat model grants another number the attack refuses.
    ``objective``: the share of (neuron, example) pairs where W x + b of the recovered input contradicts a gradient that
    is not zero, plus the residual of ``right``: near 0 says that the batch was found, and needs no truth.
    Raises DoesNotApply, saying why: noise, no bias, per-block clipping, single masked entries, frozen rows
    together with frozen columns, a batch of more than r, no sparse columns (another activation).
    """
    layer = received_layer(seen)
    search = (search or Search()).at(seen.values.dtype)
    _check(seen, layer, prior)
    P, rows = _range_of(layer, search)
    batch = P.shape[1]
    if known.examples not in (None, batch):
        raise DoesNotApply(
            f"what was received has rank {batch}, not {known.examples} as the batch: examples are repeated, their "
            "gradient vanishes, or they are more than the carriers have rank"
        )
    found: list[Guess] = []

    def explains(A: Tensor) -> bool:
        found.append(_guess(seen, layer, prior, P @ A, rows, search))
        objective = found[-1].objective
        return objective is not None and objective < 100 * (search.zero or 0.0)

    sparse_columns(P, generator, search, explains)
    return min(found, key=lambda guess: guess.objective or 0.0)


def _guess(
    seen: Observation,
    layer: ReceivedLayer,
    prior: Prior,
    columns: Float[Tensor, "rows batch"],
    rows: Bool[Tensor, " m"],
    search: Search,
) -> Guess:
    """The batch whose G has the given columns, up to scale."""
    assert layer.bias is not None
    batch = columns.shape[1]
    G = columns * torch.linalg.lstsq(columns, layer.bias.values[rows]).solution
    G = torch.where(G.abs() > (search.zero or 0.0) * G.abs().amax(0), G, 0.0)
    X, residual = _inputs(layer, G, rows)
    wrong = _contradictions(seen, layer, X, G != 0, rows)
    note = f"{batch} examples from the zeros of their ReLUs"
    if wrong:
        note += f"; {wrong:.1%} of the signs of W x + b contradict them: not all of the columns are those of examples"
    return Guess(inputs=X.mT.reshape(batch, *prior.shape), objective=wrong + residual, note=note)


def _check(seen: Observation, layer: ReceivedLayer, prior: Prior) -> None:
    if prior.size != layer.inputs:
        raise DoesNotApply(
            f"the first layer takes {layer.inputs} numbers, an input has {prior.size}: it sees positions"
        )
    if seen.noise_std > 0:
        raise DoesNotApply("noise fills the zeros that ReLU leaves: no column of G is sparse any more")
    if layer.bias is None or not layer.bias.whole or not layer.scaled_alike:
        raise DoesNotApply("the scale of each example comes from a whole db, clipped by the same factor as dL and dR")
    if not bool(layer.right.values.any()):
        raise DoesNotApply("L^T dW is zero: nothing of the gradient reaches the carriers (LoRA's B may still be 0)")
    left = layer.right if layer.left is None else layer.left
    if not bool((left.kept.all(1) == left.kept.any(1)).all()):
        raise DoesNotApply("single entries of G's range are masked: its rank is not that of the batch")
    if not bool((layer.right.kept.all(0) == layer.right.kept.any(0)).all()):
        raise DoesNotApply("single entries of L^T G X^T are masked: its columns cannot be solved for")
    if layer.left is not None and not layer.left.whole and not layer.right.whole:
        raise DoesNotApply(
            "frozen rows of dL hide G there, and frozen columns of dR hide what would make up for it: B^2 - B numbers "
            "that mix the examples stay unknown (one example is not affected)"
        )


def _range_of(layer: ReceivedLayer, search: Search) -> tuple[Float[Tensor, "rows batch"], Bool[Tensor, " m"]]:
    received = layer.right if layer.left is None else layer.left
    assert layer.bias is not None
    rows = received.kept.any(1)
    U, S, _ = torch.linalg.svd(
        torch.cat([received.values, layer.bias.values.unsqueeze(1)], 1)[rows], full_matrices=False
    )
    rank = int(((search.rank_tolerance or 0.0) * S[0] < S).sum()) if S[0] > 0 else 0
    limit = min(layer.right.values.shape[0], layer.inputs, int(rows.sum()) - 1)
    if not 1 <= rank <= limit:
        raise DoesNotApply(f"what was received has rank {rank}, and at most {limit} examples can be distinguished")
    return U[:, :rank], rows


def _inputs(
    layer: ReceivedLayer, G: Float[Tensor, "rows batch"], rows: Bool[Tensor, " m"]
) -> tuple[Float[Tensor, "n batch"], float]:
    """X from G: through L^T G, or, where rows of dL are frozen, through R X = left^T G^+^T and the rows of dR."""
    right = layer.right
    if layer.left is None or bool(rows.all()):
        V = G if layer.left is None else layer.outer(G)
        right = right if layer.left is not None else replace(right, values=right.values[rows], kept=right.kept[rows])
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
    seen: Observation, layer: ReceivedLayer, X: Float[Tensor, "n batch"], on: Bool[Tensor, "rows batch"], rows: Tensor
) -> float:
    """Share of neurons with G != 0 where W x + b <= 0; 0 where columns of x are unknown (nothing can be said)."""
    if bool(X.isnan().any()):
        return 0.0
    module = seen.model.get_submodule(layer.path)
    with torch.no_grad():
        outputs = module(X.mT.to(next(module.parameters()))).mT.double()[rows]
    return float((on & (outputs <= 0)).sum() / max(1, int(on.sum())))
