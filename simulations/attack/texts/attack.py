"""Attack the recorded updates of a text workload: which tokens an attack recovers, next to a blind guess."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from fedlsg.attacks.observation import ThreatModel
from fedlsg.attacks.text.tokens import TextPrior, Vocabulary
from simulations.attack.recorded.observations import Record
from simulations.attack.recorded.target import Options, Target, attempts, membership_of, pick
from simulations.attack.texts.catalogue import text_attacks
from simulations.attack.texts.score import ScoredText, scored
from simulations.models.encoder_source import find_encoder, load_tokenizer
from simulations.report.progress import Tick
from simulations.workloads.base.mirror import data_root

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
class AttackedTexts:
    """Results of one run; as ``images.Attacked``. blind: the blind guess's tokens by target."""

    record: Record
    public: TextPublic
    targets: tuple[Target, ...]
    blind: tuple[tuple[int, ...], ...]
    results: tuple[tuple[ScoredText, ...], ...]
    refused: dict[str, str]
    membership: float | None


def attack_texts(record: Record, threat: ThreatModel, options: Options, tick: Tick) -> AttackedTexts:
    """Attack texts of each batch size.

    Raises ValueError for an unknown attack, and where no recorded update has such a batch.
    """
    attacks = text_attacks(options.attacks, naive=options.naive)
    targets = pick(record, threat, options)
    options = options.budget(len(targets) * len(attacks), small=False)
    public = text_public(record)
    results, blinds = [], []
    refused: dict[str, str] = {}
    for number, target in enumerate(targets):
        known, truth = target.truth.grant(threat), tokens_of(target)
        prior = public.prior(truth.shape[1])
        blind = public.blind(sum(int(token) not in public.ignored for token in truth.flatten()))
        tried = attempts(
            attacks, target, known, prior, options, number=number, of=len(targets), refused=refused, tick=tick
        )
        results.append(
            tuple(scored(name, guess, truth, public.blind, public.ignored, took) for name, guess, took in tried)
        )
        blinds.append(tuple(blind))
    tick(1.0, "done")
    return AttackedTexts(
        record=record,
        public=public,
        targets=tuple(targets),
        blind=tuple(blinds),
        results=tuple(results),
        refused=refused,
        membership=membership_of(targets[0].seen),
    )


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
