"""Recovered texts compared with the truth and with the blind guess: the only place that sees both."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.attacks.metrics import best_matching, exact_match, token_recall
from fedlsg.attacks.observation import Guess
from simulations.attack.recorded.rows import Outcome, common_figures, judge

Blind = Callable[[int], list[int]]
"""The blind guess of so many tokens."""
LEAK = 0.05
"""Updates leak texts if an attack recovers this share of the tokens more than the blind guess."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredText:
    """One attack on one update: its texts in the order of the true ones, which they are paired with.

    tokens: (B, T). recall, blind: of the tokens of the whole batch; exact: texts that are the truth token by token.
    """

    attack: str
    tokens: Int64[Tensor, "batch positions"]
    recall: float
    blind: float
    exact: int
    seconds: float
    objective: float | None
    note: str
    unexplained: float | None = None


def scored(
    name: str, guess: Guess, truth: Int64[Tensor, "batch positions"], blind: Blind, ignored: frozenset[int],
    seconds: float,
) -> ScoredText:  # fmt: skip
    """Pair texts with the true ones by the tokens that they miss, count.

    The blind guess may name as many tokens as the attack did, or as there are, whichever is more.
    """
    tokens = guess.inputs.long()
    named = [sum(token not in ignored for token in ids.flatten().tolist()) for ids in (tokens, truth)]
    cost = torch.tensor([[_missed(mine, true, ignored) for true in truth.tolist()] for mine in tokens.tolist()])
    guesses, truths = best_matching(cost)
    paired = torch.full_like(truth, -1)
    paired[truths] = tokens[guesses]
    pairs = zip(paired.tolist(), truth.tolist(), strict=True)
    return ScoredText(
        attack=name,
        tokens=paired,
        recall=token_recall(paired.flatten().tolist(), truth.flatten().tolist(), ignored=ignored),
        blind=token_recall(blind(max(named)), truth.flatten().tolist(), ignored=ignored),
        exact=sum(exact_match(mine, true, ignored=ignored) for mine, true in pairs),
        seconds=seconds,
        objective=guess.objective,
        note=guess.note,
        unexplained=guess.unexplained,
    )


def _missed(guess: Sequence[int], truth: Sequence[int], ignored: frozenset[int]) -> float:
    """Tokens of a text that a guess lacks, and a little for those at another position."""
    wanted = sum(token not in ignored for token in truth)
    held = token_recall(guess, truth, ignored=ignored) * wanted if wanted else 0.0
    return wanted - held + 1e-3 * sum(a != b for a, b in zip(guess, truth, strict=True))


@dataclass(frozen=True, kw_only=True)
class TextSummary(Outcome):
    """One attack over all updates of one batch size; figures are shares of the tokens."""

    texts: int
    recall: float
    exact: int


def summarise(results: Sequence[ScoredText], batch: int) -> TextSummary:
    """Means over the updates of one attack's results."""
    gains = torch.tensor([r.recall - r.blind for r in results], dtype=torch.float64)
    recall, blind = (statistics.fmean(getattr(r, name) for r in results) for name in ("recall", "blind"))
    common = common_figures(results, batch, score=recall, blind=blind, gains=gains)
    return TextSummary(**common, texts=batch * len(results), recall=recall, exact=sum(r.exact for r in results))


def verdict(rows: Sequence[TextSummary]) -> str:
    """Whether the strongest attack gets more tokens than the blind guess, in words."""
    return judge(
        rows,
        things="texts",
        least=LEAK,
        result=lambda row: (
            f"recovers {100 * row.recall:.0f} % of the tokens, a blind guess {100 * row.blind:.0f} %; "
            f"{row.exact} of {row.texts} texts word by word"
        ),
        single="; one update",
        reach=lambda gain: f"; 95 % interval of the gain {100 * gain.low:+.0f} to {100 * gain.high:+.0f} points",
        nothing="no tokens recovered beyond a blind guess",
    )
