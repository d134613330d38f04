"""Attack the recorded updates of a text workload, and show which tokens the span test and matching recover."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
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
from fedlsg.setting.choices import choose
from simulations.attack.findings import FORMS, Findings, Kind, findings_of, shown_name
from simulations.attack.observations import Record, sigma_of
from simulations.attack.target import Attack, Options, Results, Target, attack_each, pick
from simulations.attack.texts_score import LEAK, ScoredText, TextPublic, scored, summarise, text_public
from simulations.report.page import Mark, TokenLine, TokenLines
from simulations.report.progress import Tick
from simulations.report.table import Column

CANDIDATES = 32
"""Tokens a position that matching tries where the span test ranks them."""


def _span(
    observation: Observation, known: Knowledge, prior: TextPrior, generator: torch.Generator, *_: object
) -> Guess:
    texts = known.examples or observation.expected_examples
    scores = span_test(observation, prior.vocabulary)
    reading = read_tokens(observation.model, scores, prior.vocabulary, texts=texts, generator=generator)
    return Guess(
        inputs=reading.tokens,
        objective=reading.unexplained,
        note=f"{len(scores.span.basis)} directions in {scores.span.rows} rows of {len(scores.span.columns)} units; "
        f"share of the received energy that is left over {reading.unexplained:.2g}"
        + ("" if reading.unique else ", which says nothing with so few in units"),
    )


def _matching(name: str, *, naive: bool) -> Attack[TextPrior]:
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
            start = read_tokens(observation.model, scores, prior.vocabulary, texts=texts, generator=generator).tokens
            prior = replace(prior, start=start, candidates=scores.candidates(CANDIDATES))
        except DoesNotApply:
            pass  # matching starts from the blind guess
        return match_text(observation.to(device), known, prior, attack=attack, generator=generator, progress=progress)

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


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackedTexts(Results[ScoredText, tuple[int, ...]]):
    """Results of one run of texts. blind: the blind guess's tokens by target."""

    public: TextPublic


def attack_texts(record: Record, threat: ThreatModel, options: Options, tick: Tick) -> AttackedTexts:
    """Attack texts of each batch size.

    Raises ValueError for an unknown attack, and where no recorded update has such a batch.
    """
    attacks = text_attacks(options.attacks, naive=options.naive)
    targets = pick(record, threat, options)
    options = options.budget(len(targets) * len(attacks), small=False)
    public = text_public(record)

    def prepared(target: Target, _: Knowledge) -> tuple[TextPrior, tuple[int, ...], Callable[..., ScoredText]]:
        truth = tokens_of(target)
        blind = public.blind(sum(int(token) not in public.ignored for token in truth.flatten()))
        return (
            public.prior(truth.shape[1]),
            tuple(blind),
            lambda name, guess, took: scored(name, guess, truth, public.blind, public.ignored, took),
        )

    known = [target.truth.grant(threat) for target in targets]
    found = attack_each(record, targets, known, [attacks] * len(targets), options, prepared, tick)
    return AttackedTexts(**vars(found), public=public)


def tokens_of(target: Target) -> Int64[Tensor, "batch positions"]:
    """The true tokens of an update, padded."""
    assert isinstance(target.truth.inputs, dict)
    return target.truth.inputs["input_ids"]


TEXTS = Kind(
    columns=(
        Column("texts", lambda row: row.texts),
        Column("recall", lambda row: 100 * row.recall, "{:.0f} %".format),
        Column("blind", lambda row: 100 * row.blind, "{:.0f} %".format),
        Column("gain", lambda row: 100 * row.mean_gain, "+.0f"),
        Column("95 % interval", lambda row: row.gain, lambda gain: f"{100 * gain.low:+.0f} to {100 * gain.high:+.0f}"),
        Column("exact", lambda row: f"{row.exact} of {row.texts}"),
    ),
    note="blind: recall of a guess without the payload. gain: recall over it, in points. The 95 % interval is that of "
    f"the mean gain over these updates; another training run or other starting points are not in it. {FORMS}",
    granted={
        "prior": "tokenizer, and how often public test texts hold each token",
        "length": "tokens of the longest text of the batch; the rank of a payload without noise shows it as well",
    },
    limits="Recall counts tokens with repeats and in any order, without padding, begin and end. It is shown next to a "
    "blind guess, because many texts hold the most frequent tokens.",
    unit="points of recall",
    scale=100.0,
    summarise=summarise,
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
SHOWN = 12
"""Texts on the page, of all that were attacked."""
CAPTION = (
    "Green: the token is right, and where it belongs. Struck through: it is not in the batch. Dotted: it is in the "
    "batch, in another position or text. Recovered texts are paired with the originals by the tokens that they miss. "
    "The blind guess is for the whole batch."
)


def text_findings(one: AttackedTexts) -> Findings:
    """Table, texts and numbers of one run."""
    words = one.public.tokenizer.convert_ids_to_tokens

    def update(target: Target, blind: Sequence[int], results: Sequence[ScoredText]) -> dict[str, Any]:
        return {
            "tokens": [words(text) for text in tokens_of(target).tolist()],
            "blind": words(list(blind)),
            "attacks": [
                vars(r) | {"tokens": [[words(t) if t >= 0 else None for t in row] for row in r.tokens.tolist()]}
                for r in results
            ],
        }

    return findings_of(
        one, TEXTS, facts(one), lambda order: TokenLines(lines=tuple(lines(one, order)), caption=CAPTION), update
    )


def facts(one: AttackedTexts) -> dict[str, str]:
    """Which layers were trained, and what was received, by name."""
    seen = one.targets[0].seen
    layers = one.record.base.settings.train_layers
    trained = "all layers trained" if layers is None else f"only the top {layers} layers trained, the others frozen"
    bits = bits_at_most(one)
    return {
        "layers": trained,
        "received": f"{len(seen.values):,} numbers of each update",
        **({} if bits is None else {"at most": bits}),
    }


def bits_at_most(one: AttackedTexts) -> str | None:
    """The most that noise lets through: a Gaussian channel of power B^2 C^2 / sigma^2 C^2 carries half of it in nats.

    The bound holds on average over all texts. There is none without noise, or for several local steps.
    """
    seen = one.targets[0].seen
    if not seen.mechanism.private or seen.local.steps > 1:
        return None
    sigma = sigma_of(seen)
    batch = max(len(target.truth.rows) for target in one.targets)
    bits = batch**2 / (2 * sigma**2 * math.log(2))
    return f"{bits:.3g} bits about a batch of {batch} in a payload with this noise, on average over texts"


def lines(one: AttackedTexts, order: Sequence[str]) -> list[TokenLine]:
    """Original, blind guess and every attack of the first texts, attacks in this order."""
    words = one.public.tokenizer.convert_ids_to_tokens
    made: list[TokenLine] = []
    for target, blind, results in zip(one.targets, one.blind, one.results, strict=True):
        held = set(tokens_of(target).flatten().tolist())
        for row, text in enumerate(tokens_of(target).tolist()):
            if sum(line.first for line in made) == SHOWN:
                return made
            known = [token for token in text if token not in one.public.ignored]
            made.append(TokenLine(name="original", tokens=tuple((words(token), "") for token in known), first=True))
            if row == 0:
                marks: list[Mark] = ["" if token in held else "wrong" for token in blind]
                made.append(TokenLine(name="blind guess", tokens=tuple(zip(map(words, blind), marks, strict=True))))
            made += [
                TokenLine(name=shown_name(r.attack), tokens=tuple(marked(r, row, text, held, one)))
                for r in sorted(results, key=lambda r: order.index(r.attack))
            ]
    return made


def marked(
    result: ScoredText, row: int, text: Sequence[int], held: Set[int], one: AttackedTexts
) -> list[tuple[str, Mark]]:
    """Recovered tokens of one text, each with its mark; ``held``: all tokens of the batch."""
    words, ignored = one.public.tokenizer.convert_ids_to_tokens, one.public.ignored
    found: list[tuple[str, Mark]] = []
    for token, true in zip(result.tokens[row].tolist(), text, strict=True):
        if token < 0 or token in ignored:
            continue
        found.append((words(token), "found" if token == true else "moved" if token in held else "wrong"))
    return found
