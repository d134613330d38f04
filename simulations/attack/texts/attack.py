"""Attack the recorded updates of a text workload: which tokens an attack recovers, next to a blind guess."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from fedlsg.attacks.guess import Guess
from fedlsg.attacks.inversion.matching import Progress
from fedlsg.attacks.observation import ThreatModel
from fedlsg.attacks.text.prior import TextPrior
from fedlsg.attacks.text.tokens import Vocabulary
from simulations.attack.recorded.observations import Record
from simulations.attack.recorded.target import Target, attempts, membership_of, pick
from simulations.attack.texts.catalogue import TextAttack
from simulations.attack.texts.score import ScoredText, scored
from simulations.models.encoder_source import find_encoder, load_tokenizer
from simulations.report.terminal import Tick
from simulations.workloads.base.mirror import data_root
from simulations.workloads.base.workload import Workload

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

    label: str
    record: Record
    public: TextPublic
    targets: tuple[Target, ...]
    blind: tuple[tuple[int, ...], ...]
    results: tuple[tuple[ScoredText, ...], ...]
    refused: dict[str, str]
    membership: float | None


def is_text(workload: Workload) -> bool:
    """Whether the inputs are tokens."""
    inputs, _ = workload.test.batch(torch.tensor([0]))
    return isinstance(inputs, dict) and "input_ids" in inputs


def attack_texts(
    record: Record,
    threat: ThreatModel,
    *,
    batches: Sequence[int],
    texts: int,
    attacks: Sequence[TextAttack],
    seconds: float,
    seed: int,
    tick: Tick,
) -> AttackedTexts:
    """Attack up to ``texts`` texts of each batch size. Raises ValueError where no recorded update has such a batch."""
    targets = pick(record, threat, batches=batches, examples=texts)
    public = text_public(record)
    results, blinds = [], []
    refused: dict[str, str] = {}
    for number, target in enumerate(targets):
        known = target.truth.grant(threat)
        truth = tokens_of(target)
        prior = public.prior(truth.shape[1])
        blind = public.blind(sum(int(token) not in public.ignored for token in truth.flatten()))

        def run(attack: TextAttack, generator: torch.Generator, progress: Progress) -> Guess:
            return attack.run(target.seen, known, prior, generator, seconds, progress)  # noqa: B023 - used at once

        tried = attempts(attacks, run, number=number, of=len(targets), seed=seed, refused=refused, tick=tick)
        results.append(
            tuple(scored(a.name, guess, truth, public.blind, public.ignored, took) for a, guess, took in tried)
        )
        blinds.append(tuple(blind))
    tick(1.0, "done")
    return AttackedTexts(
        label=record.base.settings.method,
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
