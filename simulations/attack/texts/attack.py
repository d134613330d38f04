"""Attack the recorded updates of a text workload: which tokens the span test and matching recover."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation, ThreatModel
from fedlsg.attacks.search import Progress
from fedlsg.attacks.text_matching import TextMatching, match_text
from fedlsg.attacks.token_reading import read_tokens
from fedlsg.attacks.tokens import TextPrior, Vocabulary, span_test
from fedlsg.choices import choose
from simulations.attack.recorded.observations import Record
from simulations.attack.recorded.target import Attack, Options, Results, Target, attack_each, pick
from simulations.attack.texts.score import ScoredText, scored
from simulations.models.encoder_source import find_encoder, load_tokenizer
from simulations.report.progress import Tick
from simulations.workloads.base.mirror import data_root

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


PUBLIC_TEXTS = 5000
UNSEEN = 0.1
"""Count of a token that no public text holds: it stays possible."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TextPublic:
    """What is known of a workload's texts beforehand.

    tokenizer: the model's own. ignored: padding, begin, end: they count on neither side. counts: copies of each token
    in each public text, which the blind guess and the prior are made of.
    """

    tokenizer: Any
    ignored: frozenset[int]
    special: tuple[int, ...]
    words: str
    embeddings: str
    pad: int
    begin: int | None
    end: int | None
    size: int
    types: int
    counts: tuple[Counter[int], ...]

    def prior(self, length: int) -> TextPrior:
        """For texts of ``length`` tokens, special ones included."""
        total = torch.full((self.size,), UNSEEN, dtype=torch.float64)
        for counted in self.counts:
            for token, copies in counted.items():
                total[token] += copies
        vocabulary = Vocabulary(
            embeddings=self.embeddings, words=self.words, size=self.size, length=length, special=self.special,
            pad=self.pad, types=self.types,
        )  # fmt: skip
        total[[*self.ignored]] = 0.0
        inner = length - (self.begin is not None) - (self.end is not None)
        ends = ([] if self.begin is None else [self.begin]), ([] if self.end is None else [self.end])
        return TextPrior(
            vocabulary=vocabulary,
            log_frequency=(total / total.sum()).log().float(),
            blind=torch.tensor([*ends[0], *self.blind(inner), *ends[1]]),
        )

    def blind(self, count: int) -> list[int]:
        """The ``count`` tokens that hold most of a public text on average: no other guess blind to it holds more.

        A token is in it more than once if that pays: its second copy counts the texts that hold it twice.
        """
        held: Counter[tuple[int, int]] = Counter()
        for counted in self.counts:
            held.update((token, copy) for token, copies in counted.items() for copy in range(copies))
        most = [token for (token, _), _ in held.most_common(count)]
        return [*most, *most[:1] * (count - len(most))]


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


def text_public(record: Record) -> TextPublic:
    """From settings, model and public test split. Raises ValueError for a model without a table of word embeddings."""
    settings, workload = record.base.settings, record.base.workload
    folder = None if settings.data_dir is None else Path(settings.data_dir)
    tokenizer = load_tokenizer(find_encoder(str(settings.model), settings.pretrained), data_root(folder))
    model = record.base.build_model()
    words, embeddings = embedding_paths(model)
    table = model.get_submodule(words)
    assert isinstance(table, nn.Embedding)
    rows = torch.arange(min(PUBLIC_TEXTS, len(workload.test)))
    public, _ = workload.test.batch(rows)
    pad, begin, end = (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id)
    ignored = frozenset(int(token) for token in (pad, begin, end) if token is not None)
    never = (number for word, number in tokenizer.get_vocab().items() if word.startswith("[unused"))
    kinds = public.get("token_type_ids")
    return TextPublic(
        tokenizer=tokenizer,
        ignored=ignored,
        special=tuple(sorted({*never, *map(int, tokenizer.all_special_ids)} - (ignored - {int(pad)}))),
        words=words,
        embeddings=embeddings,
        pad=int(pad),
        begin=begin,
        end=end,
        size=table.num_embeddings,
        types=1 if kinds is None else int(kinds.max()) + 1,
        counts=tuple(Counter(t for t in text if t not in ignored) for text in public["input_ids"].tolist()),
    )


def embedding_paths(model: nn.Module) -> tuple[str, str]:
    """(table of word embeddings according to transformers, module of embeddings that it is in).

    Raises ValueError for a model that has none.
    """
    ask = next((m.get_input_embeddings for m in model.modules() if hasattr(m, "get_input_embeddings")), None)
    table = ask() if callable(ask) else None
    words = next((name for name, m in model.named_modules() if m is table and isinstance(m, nn.Embedding)), "")
    if not words:
        raise ValueError("the model has no table of word embeddings: its tokens cannot be attacked")
    return words, words.rpartition(".")[0]
