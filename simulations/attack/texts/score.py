"""Recovered texts compared with the truth and with the blind guess: the only place that sees both."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlsg.attacks.metrics import Interval, best_matching, exact_match, mean_interval, token_recall
from fedlsg.attacks.observation import Guess
from simulations.attack.recorded.best import not_converged
from simulations.attack.recorded.names import shown_name

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
class TextSummary:
    """One attack over all updates of one batch size. gain: of the recall over the blind guess; None for one update."""

    attack: str
    batch: int
    texts: int
    recall: float
    blind: float
    exact: int
    gain: Interval | None
    seconds: float
    unexplained: float | None = None

    @property
    def mean_gain(self) -> float:
        """Share of the tokens over the blind guess."""
        return self.recall - self.blind


def summarise(results: Sequence[ScoredText], batch: int) -> TextSummary:
    """Means over the updates of one attack's results."""
    gains: Float[Tensor, " n"] = torch.tensor([r.recall - r.blind for r in results], dtype=torch.float64)
    return TextSummary(
        attack=results[0].attack,
        batch=batch,
        texts=batch * len(results),
        recall=statistics.fmean(r.recall for r in results),
        blind=statistics.fmean(r.blind for r in results),
        exact=sum(r.exact for r in results),
        gain=mean_interval(gains) if len(gains) > 1 else None,
        seconds=statistics.fmean(r.seconds for r in results),
        unexplained=max((r.unexplained for r in results if r.unexplained is not None), default=None),
    )


def verdict(rows: Sequence[TextSummary]) -> str:
    """Whether the strongest attack gets more tokens than the blind guess, which needs no payload, in words."""
    if not rows:
        return "no attack applies to these updates, for the given reasons: that is no proof of privacy"
    best = max(rows, key=lambda row: (-math.inf if row.gain is None else row.gain.low, row.mean_gain))
    best_words = (
        f"the strongest attack ({shown_name(best.attack)}, batch of {best.batch}) recovers {100 * best.recall:.0f} % "
        f"of the tokens, a blind guess {100 * best.blind:.0f} %; {best.exact} of {best.texts} texts word by word"
    )
    stuck = not_converged(rows)
    if stuck and (best.gain is None or best.gain.low <= 0):
        return f"{stuck}: {best_words}"
    if best.gain is None:
        return f"{best_words}; one update: too few for a verdict"
    reach = f"{best_words}; 95 % interval of the gain {100 * best.gain.low:+.0f} to {100 * best.gain.high:+.0f} points"
    if best.gain.low > LEAK:
        return f"THESE UPDATES LEAK TEXTS: {reach}"
    if best.gain.low > 0:
        return f"slightly better than a blind guess: {reach}"
    if any(row.gain is None or row.gain.high > LEAK for row in rows):
        return f"undecided, too few texts: {reach}"
    return f"no tokens recovered beyond a blind guess: {reach}. Other attacks may do better"
