"""The attacks on texts by name: the span test, and matching."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from fedlsg.attacks.guess import DoesNotApply, Guess
from fedlsg.attacks.inversion.matching import Progress
from fedlsg.attacks.observation import Knowledge, Observation
from fedlsg.attacks.text.matching import TextMatching, match_text
from fedlsg.attacks.text.prior import TextPrior
from fedlsg.attacks.text.token_reading import read_tokens
from fedlsg.attacks.text.tokens import span_test
from fedlsg.choices import choose

CANDIDATES = 32
"""Tokens a position that matching tries where the span test ranks them."""

Run = Callable[[Observation, Knowledge, TextPrior, torch.Generator, float, Progress], Guess]


@dataclass(frozen=True, kw_only=True)
class TextAttack:
    """An attack of ``fedlsg attack`` on texts; ``run`` raises DoesNotApply where there is nothing to work on."""

    name: str
    run: Run


def _span(
    seen: Observation,
    known: Knowledge,
    prior: TextPrior,
    generator: torch.Generator,
    seconds: float,
    progress: Progress,
) -> Guess:
    texts = known.examples or max(1, round(seen.local.expected_batch))
    scores = span_test(seen, prior.vocabulary)
    reading = read_tokens(seen.model, scores, prior.vocabulary, texts=texts, generator=generator)
    return Guess(
        inputs=reading.tokens,
        objective=reading.unexplained,
        note=f"{len(scores.span.basis)} directions in {scores.span.rows} rows of {len(scores.span.columns)} units; "
        f"share of the received energy that is left over {reading.unexplained:.2g}"
        + ("" if reading.unique else ", which says nothing with so few in units"),
    )


def _matching(*, naive: bool) -> Run:
    def run(
        seen: Observation,
        known: Knowledge,
        prior: TextPrior,
        generator: torch.Generator,
        seconds: float,
        progress: Progress,
    ) -> Guess:
        attack = TextMatching(
            distance="likelihood" if seen.noise_std and not naive else "cosine",
            compare="naive" if naive else "adaptive",
            seconds=seconds,
        )
        texts = known.examples or max(1, round(seen.local.expected_batch))
        try:
            scores = span_test(seen, prior.vocabulary)
            start = read_tokens(seen.model, scores, prior.vocabulary, texts=texts, generator=generator).tokens
            prior = replace(prior, start=start, candidates=scores.candidates(CANDIDATES))
        except DoesNotApply:
            pass  # matching starts from the blind guess
        return match_text(seen, known, prior, attack=attack, generator=generator, progress=progress)

    return run


TEXT_ATTACKS: Mapping[str, TextAttack] = MappingProxyType(
    {
        "span": TextAttack(name="span", run=_span),
        "matching": TextAttack(name="matching", run=_matching(naive=False)),
        "matching-naive": TextAttack(name="matching-naive", run=_matching(naive=True)),
    }
)


def text_attacks(names: str | None, *, naive: bool) -> list[TextAttack]:
    """Attacks from a list with commas; None: all of them. Raises ValueError naming the known."""
    if names is not None:
        return [choose("attack", name.strip(), TEXT_ATTACKS) for name in names.split(",")]
    return [attack for name, attack in TEXT_ATTACKS.items() if naive or name != "matching-naive"]
