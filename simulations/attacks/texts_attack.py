"""Attacks on the updates of a text workload: the span test and matching, and what pages show."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation, ThreatModel
from fedlsg.attacks.search import Progress
from fedlsg.attacks.text_matching import TextMatching, match_text
from fedlsg.attacks.token_reading import read_tokens
from fedlsg.attacks.tokens import TextPrior, span_test
from fedlsg.simulations.attacks.findings import NO_ATTACK, VERDICTS, shown_name
from fedlsg.simulations.attacks.observations import Record
from fedlsg.simulations.attacks.privacy_facts import sigma_of
from fedlsg.simulations.attacks.target import Attack, Kind, Options, Reading, Results, Target
from fedlsg.simulations.attacks.texts_known import known_texts
from fedlsg.simulations.attacks.texts_score import ScoredText, TextSummary, score_texts
from fedlsg.simulations.report.pages.page import Mark, TokenLine, TokenLines

CANDIDATES = 32
"""Tokens a position that matching tries, if the span test can rank them."""


def _run_span(
    observation: Observation,
    known: Knowledge,
    prior: TextPrior,
    generator: torch.Generator,
    *_: object,
) -> Guess:
    texts = known.examples or observation.expected_examples
    scores = span_test(observation, prior.vocabulary)
    reading = read_tokens(
        observation.model, scores, prior.vocabulary, texts=texts, generator=generator
    )
    return Guess(
        inputs=reading.tokens,
        objective=reading.unexplained,
        note=f"{len(scores.span.basis)} directions in {scores.span.rows} rows of "
        f"{len(scores.span.columns)} units; share of the received energy that is left over "
        f"{reading.unexplained:.2g}"
        + ("" if reading.unique else ", which says nothing with so few in units"),
    )


def _matching(name: str, *, naive: bool) -> Attack:
    def run(
        observation: Observation,
        known: Knowledge,
        prior: TextPrior,
        generator: torch.Generator,
        seconds: float,
        progress: Progress,
        device: str = "cpu",
    ) -> Guess:
        attack = TextMatching(
            distance="likelihood" if observation.noise_std and not naive else "cosine",
            compare="naive" if naive else "adaptive",
            seconds=seconds,
        )
        texts = known.examples or observation.expected_examples
        try:
            scores = span_test(observation, prior.vocabulary)
            start = read_tokens(
                observation.model, scores, prior.vocabulary, texts=texts, generator=generator
            ).tokens
            prior = replace(prior, start=start, candidates=scores.candidates(CANDIDATES))
        except DoesNotApply:
            pass  # matching starts from the blind guess
        return match_text(
            observation.to(device),
            known,
            prior,
            attack=attack,
            generator=generator,
            progress=progress,
        )

    return Attack(name=name, run=run)


TEXT_ATTACKS: Mapping[str, Attack] = MappingProxyType(
    {
        "span": Attack(name="span", run=_run_span),
        "matching": _matching("matching", naive=False),
        "matching-naive": _matching("matching-naive", naive=True),
    }
)


def tokens_of(target: Target) -> Int64[Tensor, "batch positions"]:
    """The true tokens of an update, padded."""
    assert isinstance(target.truth.inputs, dict)
    return target.truth.inputs["input_ids"]


TEXTS_SHOWN = 12
"""Texts on the page, of all that were attacked."""
CAPTION = (
    "Green: the token is right, and where it belongs. Struck through: it is not in the batch. "
    "Dotted: it is in the batch, in another position or text. Recovered texts are paired with the "
    "originals by the tokens that they miss. The blind guess is for the whole batch."
)


class Texts(Kind):
    """Attacks on the texts of one run. A blind guess is a list of tokens.

    public: what the adversary knows without an update.
    """

    outcome, original, known = TextSummary, "sentence", TEXT_ATTACKS

    def __init__(self, record: Record) -> None:
        self.public = known_texts(record)

    def guessed(self, threat: ThreatModel) -> str:
        return (
            "the words that most public texts hold, for the whole update. It is granted how many "
            "words the update's sentences have"
        )

    def attacks(self, seen: Observation, known: Knowledge, options: Options) -> Sequence[Attack]:
        if options.attacks is not None:
            return self.named(options.attacks)
        return [
            attack for name, attack in self.known.items() if options.naive or "naive" not in name
        ]

    def task(
        self, target: Target, known: Knowledge, examples: int
    ) -> tuple[TextPrior, list[int], Callable[..., ScoredText]]:
        truth, public = tokens_of(target), self.public
        blind = public.blind(sum(int(token) not in public.ignored for token in truth.flatten()))
        judge = public.judge(truth, examples)
        return (
            public.prior(truth.shape[1]),
            blind,
            lambda name, guess, took: score_texts(
                name, guess, truth, public.blind, public.ignored, took, judge
            ),
        )

    def describe(self, results: Results) -> tuple[dict[str, str], dict[str, Any]]:
        layers = results.record.base.settings.train_layers
        facts = {
            "layers": "all layers trained"
            if layers is None
            else f"only the top {layers} layers trained, the others frozen",
            "received": f"{len(results.targets[0].seen.values):,} numbers of each update",
        }
        bits = bits_at_most(results.targets)
        return facts | ({} if bits is None else {"at most": bits}), {}

    def words(self, tokens: Iterable[int]) -> list[str | None]:
        """Tokens as text; None for one that was not recovered (-1)."""
        return [
            self.public.tokenizer.convert_ids_to_tokens(token) if token >= 0 else None
            for token in tokens
        ]

    def numbers(
        self, target: Target, blind: Sequence[int], scores: Sequence[ScoredText]
    ) -> dict[str, Any]:
        return {
            "tokens": [self.words(text) for text in tokens_of(target).tolist()],
            "blind": self.words(blind),
            "attacks": [
                score.numbers() | {"tokens": [self.words(row) for row in score.tokens.tolist()]}
                for score in scores
            ],
        }

    def shown(self, results: Results, order: Sequence[str]) -> TokenLines:
        """Original, blind guess and every attack of the first texts."""
        readings = [
            [
                (shown_name(score.attack), score)
                for score in sorted(scores, key=lambda score: order.index(score.attack))
            ]
            for scores in results.results
        ]
        return self._lines(results, lambda number, row: readings[number])

    def compared(
        self, results: Results, sides: Mapping[str, Sequence[Sequence[Reading]]]
    ) -> TokenLines:
        """Original, blind guess, and what each side recovered, of the first texts."""

        def read(number: int, row: int) -> list[tuple[str, ScoredText | None]]:
            readings = {name: side[number][row] for name, side in sides.items()}
            return [
                (f"{name}: {VERDICTS[reading.verdict][0].format(self.original)}", reading.score)
                for name, reading in readings.items()
            ]

        return self._lines(results, read)

    def _lines(
        self,
        results: Results,
        read: Callable[[int, int], Sequence[tuple[str, ScoredText | None]]],
    ) -> TokenLines:
        """The lines of the first texts.

        read: names and scores of what was recovered of a text, from the numbers of its target and
            of its row.
        """
        lines: list[TokenLine] = []
        for number, (target, blind) in enumerate(zip(results.targets, results.blind, strict=True)):
            texts = tokens_of(target).tolist()
            held = {token for text in texts for token in text}
            for row, text in enumerate(texts):
                if sum(line.first for line in lines) == TEXTS_SHOWN:
                    break
                original = [token for token in text if token not in self.public.ignored]
                lines.append(self._line("original", original, [""] * len(original), first=True))
                if row == 0:
                    marks: list[Mark] = ["" if token in held else "wrong" for token in blind]
                    lines.append(self._line("blind guess", blind, marks))
                lines += [
                    self._recovered(name, score, row, text, held)
                    for name, score in read(number, row)
                ]
        return TokenLines(lines=tuple(lines), caption=CAPTION)

    def _recovered(
        self, name: str, score: ScoredText | None, row: int, text: Sequence[int], held: set[int]
    ) -> TokenLine:
        """A recovered text, marked by the true one.

        score: None if no attack applied.
        row: of the text in its batch.
        text: its true tokens.
        held: tokens that the batch has.
        """
        if score is None:
            return TokenLine(name=name, tokens=((NO_ATTACK, ""),))
        tokens: list[int] = []
        marks: list[Mark] = []
        for token, true in zip(score.tokens[row].tolist(), text, strict=True):
            if token < 0 or token in self.public.ignored:
                continue
            tokens.append(token)
            if token == true:
                marks.append("found")
            else:
                marks.append("moved" if token in held else "wrong")
        return self._line(name, tokens, marks)

    def _line(
        self, name: str, tokens: Sequence[int], marks: Sequence[Mark], *, first: bool = False
    ) -> TokenLine:
        words = (str(word) for word in self.words(tokens))
        return TokenLine(name=name, tokens=tuple(zip(words, marks, strict=True)), first=first)


def bits_at_most(targets: Sequence[Target]) -> str | None:
    """The mutual information of a batch and its payload is at most B^2 / (2 sigma^2) nats.

    A sum of B clipped gradients has a norm of at most B C, the noise a deviation of sigma C in each
    of d dimensions. Such a Gaussian channel carries at most d/2 log(1 + B^2 / (d sigma^2)) nats,
    which is below B^2 / (2 sigma^2) for every d; over log 2 in bits. The bound holds on average
    over all texts. None without noise, or for several local steps.
    """
    seen = targets[0].seen
    if not seen.mechanism.private or seen.local.steps > 1:
        return None
    sigma = sigma_of(seen)
    batch = max(len(target.truth.rows) for target in targets)
    bits = batch**2 / (2 * sigma**2 * math.log(2))
    return (
        f"{bits:.3g} bits about a batch of {batch} in a payload with this noise, on average over "
        "texts"
    )
