"""How often each class is in a batch: counts by several rules, and the best of them by replay.

Symbols: c classes, B examples, n (c,) counts, y what was received of the classifier, U (numbers, c)
what one example of each class would have left there, db (c,) the gradient of its bias.
    received    y = sum_c n_c U_c, exact where outputs p and clip factors of a class are alike
    by signs    db_k < 0 only where class k is in the batch: p - e_y has one negative entry
Least squares are right for batches of many classes and spread the labels of a client that has one
class over others: real examples have other outputs p than the expected one. The rule of signs is
right there and wrong in mixed batches, where terms cancel. The counts whose replay is nearest to
what was received are kept.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy.optimize import nnls
from torch import Tensor
from torch.nn import functional as F

Counts = Int[Tensor, " c"]

ROUNDING = 1e-4
"""Distances below this are alike: outputs p are never known better."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Equations:
    """y = U n: what one example of each class would leave, and what was received."""

    of_class: Float[Tensor, "numbers c"]
    received: Float[Tensor, " numbers"]

    def solve(self) -> Float[Tensor, " c"]:
        """n >= 0 by least squares."""
        solved = nnls(self.of_class.double().numpy(), self.received.double().numpy())[0]
        return torch.from_numpy(solved)

    def distance(self, counts: Counts) -> float:
        """The part of what was received that the replay of these counts does not explain.

        At its best scale, between 0 and 1.
        """
        replayed = self.of_class.double() @ counts.double()
        cosine = float(F.cosine_similarity(replayed, self.received.double(), 0))
        return 1 - max(cosine, 0.0) ** 2


def round_to(n: Float[Tensor, " c"], examples: int) -> Counts:
    """Whole numbers that sum to B, in the proportions of n; even ones where n is zero."""
    whole = float(n.sum())
    n = n * examples / whole if whole > 0 else torch.full_like(n, examples / len(n))
    counts = n.floor().long()
    rest = (n - counts).argsort(descending=True, stable=True)
    counts[rest[: examples - int(counts.sum())]] += 1
    return counts


def by_signs(db: Float[Tensor, " c"], examples: int) -> Counts:
    """The rule of signs (after LLG, Wainakh et al. 2022): one label for each negative entry, the
    most negative first; then one at a time for what is most negative, each label taking a share.
    """
    db, counts = db.double().clone(), torch.zeros(len(db), dtype=torch.int64)
    share = db.clamp(max=0).sum() / examples * (1 + 1 / len(db))
    for label in db.argsort()[:examples].tolist():
        if db[label] < 0:
            counts[label] += 1
            db[label] -= share
    while int(counts.sum()) < examples:
        label = int(db.argmin())
        counts[label] += 1
        db[label] -= share
    return counts


def outputs_alike(
    db: Float[Tensor, " c"],
    dW: Float[Tensor, "c h"],
    weight: Float[Tensor, "c h"],
    bias: Float[Tensor, " c"],
) -> Equations | None:
    """The equations of the bias with the outputs p of the batch's own mean feature.

    db = sum_c n_c (p - e_c), after iLRG (Ma et al. 2023). None if no entry of db is negative.
    Rows of dW over their db are means of features. Those of negative rows weigh the examples of
    their own class most.
    """
    present = db < 0
    if not bool(present.any()):
        return None
    feature = dW[present].sum(0) / db[present].sum()
    p = (weight.double() @ feature.double() + bias.double()).softmax(0)
    return Equations(of_class=p.unsqueeze(1) - torch.eye(len(db), dtype=p.dtype), received=db)


def nearest(candidates: Sequence[Counts], judges: Sequence[Equations]) -> Counts:
    """The counts whose replays are nearest by all judges together; of equals the first.

    For N numbers the cost is N log(what is left open) + classes * log N, the Bayesian information
    criterion: counts of more classes fit what noise and other outputs leave, too.
    """
    numbers = max(len(judge.received) for judge in judges)
    for_each_class = math.log(numbers) / numbers

    def cost(counts: Counts) -> float:
        left = sum(judge.distance(counts) for judge in judges)
        return math.log(left + ROUNDING) + for_each_class * int((counts > 0).sum())

    return min(candidates, key=cost)
