"""What a membership attack reads of a released model, and what an attack is.

An attack is a function of ``Answers``: phi of the candidates under the target, under shadow models
and under the public model before private training, and the same of public rows, which no model was
trained on. Which candidates the target has is in none of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Scores = Float[np.ndarray, " candidates"]
Need = Literal["shadows", "public"]


def scaled_confidence(
    logits: Float[Tensor, "*batch classes"], labels: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """phi = log(p_y / (1 - p_y)) from logits: z_y - logsumexp of the other logits.

    So nothing is rounded to 0 or 1.
    """
    chosen = labels.unsqueeze(-1)
    others = logits.scatter(-1, chosen, -torch.inf).logsumexp(-1)
    return logits.gather(-1, chosen).squeeze(-1) - others


def log_likelihood(phi: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """log p of the true class, of phi = log(p / (1 - p)).

    For another loss than the cross-entropy, phi is minus the loss, and p is sigmoid(-loss): ranks
    are the same, and RMIA takes this p as a probability.
    """
    return np.asarray(-np.logaddexp(0.0, -phi))


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicAnswers:
    """phi of rows that no model was trained on, and what is public of each row before training.

    target: phi of the public rows under the target.
    shadows: phi of the public rows under each shadow model.
    first: phi of the public rows under the public model before private training.
    first_of_candidates: phi of the candidates under that model.
    features: inputs of the regression of ``scores.quantile`` for the public rows: class and outputs
        of the public model.
    features_of_candidates: the same of the candidates.
    """

    target: Float[np.ndarray, " public"]
    shadows: Float[np.ndarray, "models public"]
    first: Float[np.ndarray, " public"]
    first_of_candidates: Scores
    features: Float[np.ndarray, "public features"]
    features_of_candidates: Float[np.ndarray, "candidates features"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """phi of each candidate (``scaled_confidence``; minus the loss for other losses).

    target: under the model that is attacked.
    shadows: under models of the attacker's own.
    inside: which of them was trained with which candidate. Both have no rows where there are no
        shadows.
    public: of public rows; None where there are none.
    """

    target: Scores
    shadows: Float[np.ndarray, "models candidates"]
    inside: Bool[np.ndarray, "models candidates"]
    public: PublicAnswers | None = None

    def has(self, need: Need) -> bool:
        """Whether these answers hold ``need``."""
        return bool(len(self.shadows)) if need == "shadows" else self.public is not None


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A membership attack: ``score`` is higher for what is more likely a member.

    needs: what of ``Answers`` it reads in addition to the target's; the attack is skipped if the
        answers lack one of them.
    """

    name: str
    score: Callable[[Answers], Scores]
    needs: tuple[Need, ...] = ()
