"""What an adversary knows of a workload's texts: tokenizer, token frequencies, public texts."""

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
"""Texts of the test split that are read at most."""
UNSEEN = 0.1
"""Added to the count of every token: one that no public text holds stays possible."""
Bags = list[Counter[int]]
"""Copies of each token, a Counter for each text."""
Judge = Callable[[Bags, float | None], tuple[Recognition, ...]]
"""A verdict on each original of an update, from guesses and what the search leaves unexplained."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownTexts:
    """What an adversary knows of a workload's texts without an update.

    tokenizer: that of the model.
    ignored: padding, begin and end, which no score counts.
    special: tokens that no text holds: padding, unused and special ones, but for begin and end.
    table_path: path of the model's table of word embeddings.
    module_path: path of the module that has this table.
    pad: the token of padding.
    begin: the first token of every text; None if the tokenizer has none.
    end: the last token of every text; None if the tokenizer has none.
    vocabulary_size: tokens in the table.
    token_types: token types (segments) of the public texts.
    counts: copies of each token in each public text, for the blind guess and the prior.
    """

    tokenizer: Any
    ignored: frozenset[int]
    special: tuple[int, ...]
    table_path: str
    module_path: str
    pad: int
    begin: int | None
    end: int | None
    vocabulary_size: int
    token_types: int
    counts: tuple[Counter[int], ...]

    def prior(self, length: int) -> TextPrior:
        """The prior of texts of ``length`` tokens, those of begin and end included."""
        total = torch.full((self.vocabulary_size,), UNSEEN, dtype=torch.float64)
        for bag in self.counts:
            for token, copies in bag.items():
                total[token] += copies
        vocabulary = Vocabulary(
            embeddings=self.module_path,
            words=self.table_path,
            size=self.vocabulary_size,
            length=length,
            special=self.special,
            pad=self.pad,
            types=self.token_types,
        )
        total[[*self.ignored]] = 0.0
        first = [] if self.begin is None else [self.begin]
        last = [] if self.end is None else [self.end]
        inner = length - len(first) - len(last)
        return TextPrior(
            vocabulary=vocabulary,
            log_frequency=(total / total.sum()).log().float(),
            blind=torch.tensor([*first, *self.blind(inner), *last]),
        )

    def blind(self, count: int) -> list[int]:
        """The ``count`` tokens with the largest mean recall of a public text.

        The gain of the k-th copy of a token is the number of texts with k copies or more. It falls
        with k, so that the ``count`` largest gains are the best guess. If public texts have fewer
        copies, the first token fills the rest; without public texts the guess is empty.
        """
        gains: Counter[tuple[int, int]] = Counter()
        for bag in self.counts:
            gains.update((token, copy) for token, copies in bag.items() for copy in range(copies))
        tokens = [token for (token, _), _ in gains.most_common(count)]
        return [*tokens, *tokens[:1] * (count - len(tokens))]

    def judge(self, truth: Int64[Tensor, "batch positions"], examples: int) -> Judge:
        """A judge of guesses at these originals, of ``examples`` originals in the whole run.

        It compares them with a pool: public texts that are no originals, and synthetic ones up to
        ``pool_size``, by seed 0 so that every attack has the same.
        """
        originals = bags(truth, self.ignored)
        pool = TextPool(texts=self.counts).unlike(
            originals, pool_size(examples), public_generator(0, "public texts")
        )
        blind = pool.vector(Counter(self.blind(sum(bag.total() for bag in originals))))
        true = [pool.vector(bag) for bag in originals]

        def verdicts(guesses: Bags, unexplained: float | None) -> tuple[Recognition, ...]:
            similarity_to_pool = pool.similarities(guesses)
            vectors = [pool.vector(bag) for bag in guesses]
            return tuple(
                recognise(
                    torch.tensor([dot(vector, text) for vector in vectors]),
                    similarity_to_pool,
                    examples=examples,
                    least=RECOVERED_TEXT,
                    unexplained=unexplained,
                    blind=dot(blind, text),
                )
                for text in true
            )

        return verdicts


def bags(tokens: Int64[Tensor, "batch positions"], ignored: Set[int]) -> Bags:
    """Copies of each token of each text, without those in ``ignored`` and unknown ones (-1)."""
    return [
        Counter(token for token in text if token >= 0 and token not in ignored)
        for text in tokens.tolist()
    ]


def known_texts(record: Record) -> KnownTexts:
    """The public knowledge of a record: from its settings, its model and the test split.

    Raises ValueError for a model without a table of word embeddings.
    """
    settings, workload = record.base.settings, record.workload
    folder = None if settings.data_dir is None else Path(settings.data_dir)
    tokenizer = load_tokenizer(
        find_encoder(str(settings.model), settings.pretrained), data_root(folder)
    )
    model = record.base.initial.model()
    table_path, module_path = embedding_paths(model)
    table = model.get_submodule(table_path)
    assert isinstance(table, nn.Embedding)
    rows = torch.arange(min(PUBLIC_TEXTS, len(workload.test)))
    public, _ = workload.test.batch(rows)
    pad, begin, end = tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id
    ends = {int(token) for token in (begin, end) if token is not None}
    ignored = frozenset(ends | {int(pad)})
    unused = (
        number for word, number in tokenizer.get_vocab().items() if word.startswith("[unused")
    )
    segments = public.get("token_type_ids")
    return KnownTexts(
        tokenizer=tokenizer,
        ignored=ignored,
        special=tuple(sorted({*unused, *map(int, tokenizer.all_special_ids)} - ends | {int(pad)})),
        table_path=table_path,
        module_path=module_path,
        pad=int(pad),
        begin=begin,
        end=end,
        vocabulary_size=table.num_embeddings,
        token_types=1 if segments is None else int(segments.max()) + 1,
        counts=tuple(bags(public["input_ids"], ignored)),
    )


def embedding_paths(model: nn.Module) -> tuple[str, str]:
    """Paths of the table of word embeddings, as transformers names it, and of the module with it.

    The outermost model of transformers says which it is. Raises ValueError if there is none.
    """
    get_table = next(
        (
            module.get_input_embeddings
            for module in model.modules()
            if hasattr(module, "get_input_embeddings")
        ),
        None,
    )
    table = get_table() if callable(get_table) else None
    if isinstance(table, nn.Embedding):
        for path, module in model.named_modules():
            if module is table and path:
                return path, path.rpartition(".")[0]
    raise ValueError("the model has no table of word embeddings: its tokens cannot be attacked")
