"""Recovered texts compared with the truth and with the blind guess."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.attacks.metrics import best_matching, exact_match, token_recall
from fedlsg.attacks.observation import Guess
from fedlsg.simulations.attacks.findings import FORMS, Outcome, Score, common_figures, of_guess
from fedlsg.simulations.attacks.texts_known import Judge, bags
from fedlsg.simulations.report.pages.table import Column

Blind = Callable[[int], list[int]]
"""The blind guess of so many tokens."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredText(Score):
    """One attack on one update: its texts in the order of the true ones, which they are paired
    with.

    tokens: (B, T).
    recall, blind: of the tokens of the whole batch.
    exact: texts that are the truth token by token.
    """

    tokens: Int64[Tensor, "batch positions"]
    recall: float
    blind: float
    exact: int


def scored(
    name: str,
    guess: Guess,
    truth: Int64[Tensor, "batch positions"],
    blind: Blind,
    ignored: frozenset[int],
    seconds: float,
    judge: Judge,
) -> ScoredText:
    """Pair texts with the true ones by the tokens that they miss, count.

    The blind guess may name as many tokens as the attack did, or as there are, whichever is more.
    """
    tokens = guess.inputs.long()
    named = [
        sum(token not in ignored for token in ids.flatten().tolist()) for ids in (tokens, truth)
    ]
    cost = torch.tensor(
        [[_missed(mine, true, ignored) for true in truth.tolist()] for mine in tokens.tolist()]
    )
    guesses, truths = best_matching(cost)
    paired = torch.full_like(truth, -1)
    paired[truths] = tokens[guesses]
    pairs = zip(paired.tolist(), truth.tolist(), strict=True)
    return ScoredText(
        **of_guess(name, guess, seconds),
        recognitions=judge(bags(tokens, ignored), guess.unexplained),
        tokens=paired,
        recall=token_recall(paired.flatten().tolist(), truth.flatten().tolist(), ignored=ignored),
        blind=token_recall(blind(max(named)), truth.flatten().tolist(), ignored=ignored),
        exact=sum(exact_match(mine, true, ignored=ignored) for mine, true in pairs),
    )


def _missed(guess: Sequence[int], truth: Sequence[int], ignored: frozenset[int]) -> float:
    """Tokens of a text that a guess lacks, and a little for those at another position."""
    wanted = sum(token not in ignored for token in truth)
    held = token_recall(guess, truth, ignored=ignored) * wanted if wanted else 0.0
    return wanted - held + 1e-3 * sum(a != b for a, b in zip(guess, truth, strict=True))


@dataclass(frozen=True, kw_only=True)
class TextSummary(Outcome):
    """One attack over all updates of one batch size; figures are shares of the tokens."""

    columns = (
        Column("recognised", lambda row: f"{row.recognised} of {row.examples}"),
        Column("recovered", lambda row: row.recovered, optional=3),
        Column("recall", lambda row: 100 * row.recall, "{:.0f} %".format),
        Column("blind", lambda row: 100 * row.blind, "{:.0f} %".format),
        Column("gain", lambda row: 100 * row.mean_gain, "+.0f"),
        Column(
            "95 % interval",
            lambda row: row.gain,
            lambda g: f"{100 * g.low:+.0f} to {100 * g.high:+.0f}",
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
        gains = torch.tensor([r.recall - r.blind for r in results], dtype=torch.float64)
        recall, blind = (
            statistics.fmean(getattr(r, name) for r in results) for name in ("recall", "blind")
        )
        common = common_figures(results, batch, score=recall, blind=blind, gains=gains)
        if (gain := common["gain"]) is not None:  # no gain of a share is larger
            common["gain"] = replace(gain, low=max(-1.0, gain.low), high=min(1.0, gain.high))
        return cls(**common, recall=recall, exact=sum(r.exact for r in results))
