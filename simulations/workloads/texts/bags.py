"""Bags of words as a text workload's inputs: the words of its tokenizer, and the tokens that it puts around a text."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedlsg.synthetic import Vocabulary, bags_of_words

WORD_STARTS = ("Ġ", "▁")
"""Marks of byte-pair and sentencepiece vocabularies before the first piece of a word."""
TRIED = 100
"""Words that are tried until the tokenizer gives one back as one token."""


@dataclass(frozen=True, eq=False)
class WordDraw:
    """``draw(count, generator)``: bags of words as the model takes them; the vocabulary is read at the first draw.

    texts: 1, or 2 for pairs. max_length: most tokens of a text or pair.
    """

    tokenizer: Any
    texts: int
    max_length: int

    def __call__(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """``count`` texts."""
        return bags_of_words(count, self.vocabulary, generator)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words of the tokenizer in the order of their numbers, which is about that of their frequencies."""
        words = words_of(self.tokenizer)
        return Vocabulary(
            words=torch.tensor(words),
            around=tokens_around(self.tokenizer, self.texts, words),
            pad_id=int(self.tokenizer.pad_token_id),
            types="token_type_ids" in self.tokenizer.model_input_names,
            max_length=self.max_length,
        )


def words_of(tokenizer: Any) -> list[int]:
    """Numbers of the tokens that are words of two letters or more, ascending; of all but special ones if none is."""
    special = set(tokenizer.all_special_ids)
    tokens = sorted((number, token) for token, number in tokenizer.get_vocab().items() if number not in special)
    mark = next((start for start in WORD_STARTS if any(token.startswith(start) for _, token in tokens)), "")
    bare = ((number, token.removeprefix(mark)) for number, token in tokens if token.startswith(mark))
    words = [number for number, word in bare if len(word) > 1 and word.isalpha()]
    return words or [number for number, _ in tokens]


def tokens_around(tokenizer: Any, texts: int, words: list[int]) -> tuple[tuple[int, ...], ...]:
    """The tokens before the first of ``texts``, after it, and after the second.

    Raises ValueError for a tokenizer that gives no word back as the one token that it is.
    """
    for number in words[:TRIED]:
        word = tokenizer.decode([number])
        row = list(tokenizer(*[word] * texts)["input_ids"])
        if row.count(number) == texts:
            ends = [place for place, token in enumerate(row) if token == number]
            starts = [0, *(place + 1 for place in ends)]
            return tuple(tuple(row[a:b]) for a, b in zip(starts, [*ends, len(row)], strict=True))
    raise ValueError(
        f"{type(tokenizer).__name__} gives no word of its vocabulary back as one token: source=tokens has none"
    )
