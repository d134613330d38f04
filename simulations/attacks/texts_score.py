"""Scores of recovered texts: compared with the true texts and with a blind guess.

The blind guess is made without the update: many texts hold the most frequent tokens, so some recall
says nothing about privacy. Texts are token numbers (B, T), padded. Padding and the tokens of begin
and end belong to no text: they are ``ignored``.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.attacks.metrics import best_matching, exact_match, token_recall
from fedlsg.attacks.observation import Guess
from fedlsg.simulations.attacks.findings import (
    FORMS,
    Outcome,
    Score,
    common_figures,
    guess_fields,
)
from fedlsg.simulations.attacks.texts_known import Judge, bags
from fedlsg.simulations.report.pages.table import Column

Blind = Callable[[int], list[int]]
"""From a number of tokens to a blind guess of so many tokens."""

ORDER_WEIGHT = 1e-3
"""Cost in pairing of a token at another position; a missing token costs 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredText(Score):
    """One attack on one update.

    tokens: the recovered texts, each in the row of the true text that it is paired with; -1 in the
        rows of true texts without one.
    recall: share of the batch's tokens that were recovered, in any text or position.
    blind: the same of the blind guess.
    exact: number of texts that are recovered token by token.
    """

    tokens: Int64[Tensor, "batch positions"]
    recall: float
    blind: float
    exact: int


def score_texts(
    name: str,
    guess: Guess,
    truth: Int64[Tensor, "batch positions"],
    blind: Blind,
    ignored: frozenset[int],
    seconds: float,
    judge: Judge,
) -> ScoredText:
    """Pair the guessed texts with the true ones, and count the recovered tokens.

    The blind guess has as many tokens as the attack named, or as the truth has, whichever is
    more: an attack gains nothing by naming many.
    """
    tokens = guess.inputs.long()
    paired = _pair_texts(tokens, truth, ignored)
    most_tokens = max(_count_tokens(tokens, ignored), _count_tokens(truth, ignored))
    true_tokens = truth.flatten().tolist()
    pairs = zip(paired.tolist(), truth.tolist(), strict=True)
    return ScoredText(
        **guess_fields(name, guess, seconds),
        recognitions=judge(bags(tokens, ignored), guess.unexplained),
        tokens=paired,
        recall=token_recall(paired.flatten().tolist(), true_tokens, ignored=ignored),
        blind=token_recall(blind(most_tokens), true_tokens, ignored=ignored),
        exact=sum(exact_match(text, true, ignored=ignored) for text, true in pairs),
    )


def _count_tokens(texts: Int64[Tensor, "batch positions"], ignored: frozenset[int]) -> int:
    return sum(token not in ignored for token in texts.flatten().tolist())


def _pair_texts(
    guessed: Int64[Tensor, "guesses positions"],
    truth: Int64[Tensor, "batch positions"],
    ignored: frozenset[int],
) -> Int64[Tensor, "batch positions"]:
    """The guessed texts in the order of the true ones, so that all pairs together miss least."""
    true_texts = truth.tolist()
    costs = [
        [_count_missed(guess, true, ignored) for true in true_texts] for guess in guessed.tolist()
    ]
    guesses, truths = best_matching(torch.tensor(costs))
    paired = torch.full_like(truth, -1)
    paired[truths] = guessed[guesses]
    return paired


def _count_missed(guess: Sequence[int], truth: Sequence[int], ignored: frozenset[int]) -> float:
    """How many tokens of a true text a guess lacks, plus ``ORDER_WEIGHT`` a misplaced token."""
    wanted = sum(token not in ignored for token in truth)
    recovered = token_recall(guess, truth, ignored=ignored) * wanted if wanted else 0.0
    misplaced = sum(a != b for a, b in zip(guess, truth, strict=True))
    return wanted - recovered + ORDER_WEIGHT * misplaced


@dataclass(frozen=True, kw_only=True)
class TextSummary(Outcome):
    """One attack over all updates of one batch size; figures are shares of the tokens.

    recall: mean over updates, see ``ScoredText``.
    exact: number of texts that are recovered token by token, of all updates.
    """

    columns = (
        Column("recognised", lambda row: f"{row.recognised} of {row.examples}"),
        Column("recovered", lambda row: row.recovered, optional=3),
        Column("recall", lambda row: 100 * row.recall, "{:.0f} %".format),
        Column("blind", lambda row: 100 * row.blind, "{:.0f} %".format),
        Column("gain", lambda row: 100 * row.mean_gain, "+.0f"),
        Column(
            "95 % interval",
            lambda row: row.gain,
            lambda gain: f"{100 * gain.low:+.0f} to {100 * gain.high:+.0f}",
        ),
        Column("exact", lambda row: f"{row.exact} of {row.examples}"),
    )
    note = (
        "blind: recall of a guess without the payload. gain: recall over it, in points. The 95 % "
        "interval is that of the mean gain over these updates; another training run or other "
        "starting points are not in it. " + FORMS
    )
    granted = MappingProxyType(
        {
            "prior": "tokenizer, and how often public test texts hold each token",
            "length": "tokens of the longest text of the batch; the rank of a payload without "
            "noise shows it as well",
        }
    )
    limits = (
        "Recall counts tokens with repeats and in any order, without padding, begin and end. It is "
        "shown next to a blind guess, because many texts hold the most frequent tokens."
    )
    unit, scale, things, thing = "points of recall", 100.0, "texts", "text"
    nothing = "no text recognised"
    recall: float
    exact: int

    @property
    def result(self) -> str:
        return (
            f"recovers {100 * self.recall:.0f} % of the tokens, a blind guess "
            f"{100 * self.blind:.0f} %; {self.exact} of {self.examples} texts word by word"
        )

    @property
    def reach(self) -> str:
        if self.gain is None:
            return ""
        return (
            f"; 95 % interval of the gain {100 * self.gain.low:+.0f} to "
            f"{100 * self.gain.high:+.0f} points"
        )

    @classmethod
    def of(cls, results: Sequence[ScoredText], batch: int) -> "TextSummary":
        """Means over the updates of one attack's results."""
        gains = torch.tensor([score.recall - score.blind for score in results], dtype=torch.float64)
        recall = statistics.fmean(score.recall for score in results)
        blind = statistics.fmean(score.blind for score in results)
        common = common_figures(results, batch, score=recall, blind=blind, gains=gains)
        if (gain := common["gain"]) is not None:  # a difference of two shares is in [-1, 1]
            common["gain"] = replace(gain, low=max(-1.0, gain.low), high=min(1.0, gain.high))
        return cls(**common, recall=recall, exact=sum(score.exact for score in results))
