"""Bags of words: texts of words in random order, from a public vocabulary and in the form of a tokenizer."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.randomness import check_cpu

SHORTEST, OCTAVES = 4, 4
"""Lengths: of the octaves 4 to 7, 8 to 15, 16 to 31, 32 to 63 words each one is equally likely."""
FEWEST = 2
"""Fewest words of a text, however short texts must be."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Vocabulary:
    """The words of a tokenizer and the tokens that it puts around a text.

    words: (V,) token numbers, the most frequent word first.
    around: the tokens before the first text, after it (and before the second of a pair), after the second.
    types: whether the model reads ``token_type_ids``: the text of a pair that a token belongs to, 0 or 1.
    max_length: most tokens of a text or pair, those around it included.
    Raises ValueError without words, or where two words do not fit.
    """

    words: Int64[Tensor, " v"]
    around: tuple[tuple[int, ...], ...]
    pad_id: int
    types: bool
    max_length: int

    def __post_init__(self) -> None:
        if not len(self.words) or len(self.around) not in (2, 3) or self.room < FEWEST:
            raise ValueError(
                f"expected words, and one text or a pair with room for {FEWEST} words each in {self.max_length} "
                f"tokens: got {len(self.words)} words, and the tokens {self.around} around texts"
            )

    @property
    def texts(self) -> int:
        """1, or 2 for pairs."""
        return len(self.around) - 1

    @property
    def room(self) -> int:
        """Most words of each text."""
        return (self.max_length - sum(map(len, self.around))) // (len(self.around) - 1)


def bags_of_words(
    count: int, vocabulary: Vocabulary, generator: torch.Generator, *, exponent: float = 1.0
) -> dict[str, Int64[Tensor, "count tokens"]]:
    """``count`` texts (or pairs) as ``input_ids``, ``attention_mask`` and, if they are read, ``token_type_ids``.

    The word of rank k = 1, 2, ... has a chance proportional to k^-exponent: 1 is Zipf's law, 0 is uniform. It is a
    rough choice: ranks follow the order of the vocabulary, which is about that of frequencies in the corpus of the
    tokenizer. Lengths are public (SHORTEST, OCTAVES), cut where they do not fit. Padding is on the right, to the
    longest text of the batch.
    Raises ValueError for a generator of another device.
    """
    check_cpu(generator)
    lengths = [_lengths(count, vocabulary.room, generator) for _ in range(vocabulary.texts)]
    ranks = torch.arange(1, len(vocabulary.words) + 1, dtype=torch.float64)
    below = (ranks**-exponent).cumsum(0)
    ids: list[list[int]] = [list(vocabulary.around[0]) for _ in range(count)]
    types: list[list[int]] = [[0] * len(row) for row in ids]
    for text, (long, after) in enumerate(zip(lengths, vocabulary.around[1:], strict=True)):
        drawn = torch.rand(int(long.sum()), generator=generator, dtype=torch.float64) * below[-1]
        words = vocabulary.words[torch.searchsorted(below, drawn, right=True).clamp_(max=len(below) - 1)]
        for row, part in enumerate(words.split(long.tolist())):
            ids[row] += [*part.tolist(), *after]
            types[row] += [text] * (len(part) + len(after))
    return _padded(ids, types, vocabulary)


def _lengths(count: int, room: int, generator: torch.Generator) -> Int64[Tensor, " count"]:
    """Words of each text: 2^octave (SHORTEST + a uniform share of SHORTEST), at most ``room``."""
    octave = torch.randint(OCTAVES, (count,), generator=generator)
    first = SHORTEST << octave
    within = torch.randint(SHORTEST << OCTAVES, (count,), generator=generator) % first
    return (first + within).clamp_(max=room)


def _padded(ids: list[list[int]], types: list[list[int]], vocabulary: Vocabulary) -> dict[str, Tensor]:
    """Rows of different lengths as tensors."""
    width = max(map(len, ids), default=0)

    def filled(rows: list[list[int]], value: int) -> Tensor:
        whole = [row + [value] * (width - len(row)) for row in rows]
        return torch.tensor(whole, dtype=torch.int64).view(len(rows), width)

    found = {"input_ids": filled(ids, vocabulary.pad_id), "attention_mask": filled([[1] * len(row) for row in ids], 0)}
    return found | ({"token_type_ids": filled(types, 0)} if vocabulary.types else {})
