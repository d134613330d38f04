"""Loss threshold (Yeom et al. 2018): an example whose loss is low was trained on.

The protocol of Yu et al. 2021 (RGP, Table 5): a data set of equally many training and test examples
is halved. One half finds the best threshold, the other measures how often it is right. 50 % is
guessing. Success on average hides what happens to the few: read the low false positive rates.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.membership.answers import Answers, Attack, Scores, log_likelihood
from fedlsg.attacks.roc import Rate, Roc, clopper_pearson, roc


@dataclass(frozen=True, kw_only=True)
class LossThreshold:
    """success: share of right answers on the second half. roc: of all losses, without a threshold.
    examples: in all.
    """

    success: Rate
    threshold: float
    roc: Roc
    examples: int


def loss_threshold(
    member_losses: Float[Tensor, " n"],
    other_losses: Float[Tensor, " m"],
    generator: torch.Generator,
) -> LossThreshold:
    """The paper's protocol, on losses of training examples and of other examples.

    The larger group is cut to the size of the smaller one at random.
    Raises ValueError for fewer than two of a kind, or a NaN.
    """
    count = min(len(member_losses), len(other_losses))
    if count < 2 or bool(torch.isnan(torch.cat([member_losses, other_losses])).any()):
        raise ValueError(f"expected two losses of each kind at least and no NaN, got {count}")
    members, others = (
        losses[torch.randperm(len(losses), generator=generator)[:count]].double().numpy()
        for losses in (member_losses, other_losses)
    )
    half = count // 2
    threshold = best_threshold(members[:half], others[:half])
    right = int((members[half:] <= threshold).sum() + (others[half:] > threshold).sum())
    return LossThreshold(
        success=clopper_pearson(right, 2 * (count - half)),
        threshold=threshold,
        roc=roc(-members, -others),
        examples=2 * count,
    )


def best_threshold(members: Float[np.ndarray, " n"], others: Float[np.ndarray, " n"]) -> float:
    """The threshold with the most right answers, "member" at or below it.

    The lowest of equally good ones; -inf stands for "never".
    """
    tried = np.concatenate([[-np.inf], np.unique(np.concatenate([members, others]))])
    right = np.searchsorted(np.sort(members), tried, "right") - np.searchsorted(
        np.sort(others), tried, "right"
    )
    return float(tried[int(right.argmax())])


def minus_loss(answers: Answers) -> Scores:
    """Minus the loss of each candidate: log p of the true class."""
    return log_likelihood(answers.target)


ATTACKS = (Attack(name="loss threshold", score=minus_loss),)
