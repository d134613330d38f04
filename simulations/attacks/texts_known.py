"""What is known of a workload's texts beforehand: the tokenizer, how often public texts hold each
token, and the public texts that a verdict compares a reading with.
"""

from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from fedlsg.attacks.recognition import (
    RECOVERED_TEXT,
    Recognition,
    TextPool,
    dot,
    pool_size,
    recognise,
)
from fedlsg.attacks.tokens import TextPrior, Vocabulary
from fedlsg.randomness import public_generator
from fedlsg.simulations.attacks.observations import Record
from fedlsg.simulations.models.encoder_source import find_encoder, load_tokenizer
from fedlsg.simulations.workloads.rows.shards import data_root

PUBLIC_TEXTS = 5000
UNSEEN = 0.1
"""Count of a token that no public text holds: it stays possible."""
Bags = list[Counter[int]]
Judge = Callable[[Bags, float | None], tuple[Recognition, ...]]
"""A verdict on each original of an update, from guesses and what the search leaves unexplained."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TextPublic:
    """What is known of a workload's texts beforehand.

    tokenizer: the model's own.
    ignored: padding, begin, end: they count on neither side.
    counts: copies of each token in each public text, which the blind guess and the prior are made
        of.
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
            embeddings=self.embeddings,
            words=self.words,
            size=self.size,
            length=length,
            special=self.special,
            pad=self.pad,
            types=self.types,
        )
        total[[*self.ignored]] = 0.0
        inner = length - (self.begin is not None) - (self.end is not None)
        ends = (
            ([] if self.begin is None else [self.begin]),
            ([] if self.end is None else [self.end]),
        )
        return TextPrior(
            vocabulary=vocabulary,
            log_frequency=(total / total.sum()).log().float(),
            blind=torch.tensor([*ends[0], *self.blind(inner), *ends[1]]),
        )

    def blind(self, count: int) -> list[int]:
        """The ``count`` tokens that hold most of a public text on average: no other guess blind to
        it holds more.

        A token is in it more than once if that pays: its second copy counts the texts that hold it
        twice.
        """
        held: Counter[tuple[int, int]] = Counter()
        for counted in self.counts:
            held.update(
                (token, copy) for token, copies in counted.items() for copy in range(copies)
            )
        most = [token for (token, _), _ in held.most_common(count)]
        return [*most, *most[:1] * (count - len(most))]

    def judge(self, truth: Int64[Tensor, "batch positions"], examples: int) -> "Judge":
        """Verdicts on these originals, of ``examples`` that the run judges."""
        originals = bags(truth, self.ignored)
        pool = TextPool(texts=self.counts).unlike(
            originals, pool_size(examples), public_generator(0, "public texts")
        )
        blind = pool.vector(Counter(self.blind(sum(bag.total() for bag in originals))))
        true = [pool.vector(bag) for bag in originals]

        def verdicts(guesses: Bags, unexplained: float | None) -> tuple[Recognition, ...]:
            rivals, found = pool.similarities(guesses), [pool.vector(bag) for bag in guesses]
            return tuple(
                recognise(
                    torch.tensor([dot(guess, text) for guess in found]),
                    rivals,
                    examples=examples,
                    least=RECOVERED_TEXT,
                    unexplained=unexplained,
                    blind=dot(blind, text),
                )
                for text in true
            )

        return verdicts


def bags(tokens: Int64[Tensor, "batch positions"], ignored: Set[int]) -> "Bags":
    """Copies of each token of each text, without ``ignored`` and unknown ones."""
    return [Counter(t for t in text if t >= 0 and t not in ignored) for text in tokens.tolist()]


def text_public(record: Record) -> TextPublic:
    """From settings, model and public test split. Raises ValueError for a model without a table of
    word embeddings.
    """
    settings, workload = record.base.settings, record.workload
    folder = None if settings.data_dir is None else Path(settings.data_dir)
    tokenizer = load_tokenizer(
        find_encoder(str(settings.model), settings.pretrained), data_root(folder)
    )
    model = record.base.initial.model()
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
        special=tuple(
            sorted({*never, *map(int, tokenizer.all_special_ids)} - (ignored - {int(pad)}))
        ),
        words=words,
        embeddings=embeddings,
        pad=int(pad),
        begin=begin,
        end=end,
        size=table.num_embeddings,
        types=1 if kinds is None else int(kinds.max()) + 1,
        counts=tuple(bags(public["input_ids"], ignored)),
    )


def embedding_paths(model: nn.Module) -> tuple[str, str]:
    """(table of word embeddings according to transformers, module of embeddings that it is in).

    Raises ValueError for a model that has none.
    """
    ask = next(
        (m.get_input_embeddings for m in model.modules() if hasattr(m, "get_input_embeddings")),
        None,
    )
    table = ask() if callable(ask) else None
    words = next(
        (name for name, m in model.named_modules() if m is table and isinstance(m, nn.Embedding)),
        "",
    )
    if not words:
        raise ValueError("the model has no table of word embeddings: its tokens cannot be attacked")
    return words, words.rpartition(".")[0]
