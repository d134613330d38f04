"""The attacks on texts by name: the span test, and matching."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch

from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation
from fedlsg.attacks.search import Progress
from fedlsg.attacks.text.matching import TextMatching, match_text
from fedlsg.attacks.text.token_reading import read_tokens
from fedlsg.attacks.text.tokens import TextPrior, span_test
from fedlsg.choices import choose
from simulations.attack.recorded.target import Attack

CANDIDATES = 32
"""Tokens a position that matching tries where the span test ranks them."""


def _span(
    seen: Observation,
    known: Knowledge,
    prior: TextPrior,
    generator: torch.Generator,
    seconds: float,
    progress: Progress,
    device: str = "cpu",
) -> Guess:
    texts = known.examples or seen.expected_examples
    scores = span_test(seen, prior.vocabulary)
    reading = read_tokens(seen.model, scores, prior.vocabulary, texts=texts, generator=generator)
    return Guess(
        inputs=reading.tokens,
        objective=reading.unexplained,
        note=f"{len(scores.span.basis)} directions in {scores.span.rows} rows of {len(scores.span.columns)} units; "
        f"share of the received energy that is left over {reading.unexplained:.2g}"
        + ("" if reading.unique else ", which says nothing with so few in units"),
    )


def _matching(name: str, *, naive: bool) -> Attack[TextPrior]:
    def run(
        seen: Observation,
        known: Knowledge,
        prior: TextPrior,
        generator: torch.Generator,
        seconds: float,
        progress: Progress,
        device: str = "cpu",
    ) -> Guess:
        attack = TextMatching(
            distance="likelihood" if seen.noise_std and not naive else "cosine",
            compare="naive" if naive else "adaptive",
            seconds=seconds,
        )
        texts = known.examples or seen.expected_examples
        try:
            scores = span_test(seen, prior.vocabulary)
            start = read_tokens(seen.model, scores, prior.vocabulary, texts=texts, generator=generator).tokens
            prior = replace(prior, start=start, candidates=scores.candidates(CANDIDATES))
        except DoesNotApply:
            pass  # matching starts from the blind guess
        return match_text(seen.to(device), known, prior, attack=attack, generator=generator, progress=progress)

    return Attack(name=name, run=run)


TEXT_ATTACKS: Mapping[str, Attack[TextPrior]] = MappingProxyType(
    {
        "span": Attack(name="span", run=_span),
        "matching": _matching("matching", naive=False),
        "matching-naive": _matching("matching-naive", naive=True),
    }
)


def text_attacks(names: str | None, *, naive: bool) -> list[Attack[TextPrior]]:
    """Attacks from a list with commas; None: all of them. Raises ValueError naming the known."""
    if names is not None:
        return [choose("attack", name.strip(), TEXT_ATTACKS) for name in names.split(",")]
    return [attack for name, attack in TEXT_ATTACKS.items() if naive or name != "matching-naive"]
