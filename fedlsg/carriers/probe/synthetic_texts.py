"""Synthetic public texts: words of a public vocabulary in random order, from no data at all.

They are a function of their arguments and a CPU generator, so what is computed from them costs no
privacy.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.randomness import check_cpu

SHORTEST, OCTAVES = 4, 4
"""Fewest words of the first octave of lengths, and number of octaves: 4 to 7, 8 to 15, 16 to 31 and
32 to 63 words are equally likely.
"""
FEWEST = 2
"""Fewest words of a text, however short texts must be."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Vocabulary:
    """The words of a tokenizer and the tokens that it puts around a text.

    words: (V,) token numbers, the most frequent word first.
    around: the tokens before the first text, after it (and before the second of a pair), after the
        second.
    pad_id: the token that fills short rows.
    types: whether the model reads ``token_type_ids``: 0 or 1, the text of a pair that a token
        belongs to.
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
                f"expected words, and one text or a pair with room for {FEWEST} words each in "
                f"{self.max_length} tokens: got {len(self.words)} words, and the tokens "
                f"{self.around} around texts"
            )

    @property
    def texts(self) -> int:
        """Texts of a row: 1, or 2 for pairs."""
        return len(self.around) - 1

    @property
    def room(self) -> int:
        """Most words of each text."""
        return (self.max_length - sum(map(len, self.around))) // self.texts


def bags_of_words(
    count: int, vocabulary: Vocabulary, generator: torch.Generator
) -> dict[str, Int64[Tensor, "count tokens"]]:
    """``count`` texts (or pairs) as ``input_ids``, ``attention_mask`` and, if they are read,
    ``token_type_ids``.

    The word of rank k = 1, 2, ... has a chance proportional to 1 / k (Zipf's law). It is a rough
    choice: ranks follow the order of the vocabulary, which is about that of frequencies in the
    corpus of the tokenizer. Lengths are public (SHORTEST, OCTAVES), cut where they do not fit.
    Padding is on the right, to the longest text of the batch.
    Raises ValueError for a generator of another device.
    """
    check_cpu(generator)
    lengths = [_lengths(count, vocabulary.room, generator) for _ in range(vocabulary.texts)]
    ranks = torch.arange(1, len(vocabulary.words) + 1, dtype=torch.float64)
    cumulated = (ranks**-1.0).cumsum(0)
    ids: list[list[int]] = [list(vocabulary.around[0]) for _ in range(count)]
    types: list[list[int]] = [[0] * len(row) for row in ids]
    for text, (length, after) in enumerate(zip(lengths, vocabulary.around[1:], strict=True)):
        uniform = torch.rand(int(length.sum()), generator=generator, dtype=torch.float64)
        places = torch.searchsorted(cumulated, uniform * cumulated[-1], right=True)
        words = vocabulary.words[places.clamp_(max=len(cumulated) - 1)]
        for row, part in enumerate(words.split(length.tolist())):
            ids[row] += [*part.tolist(), *after]
            types[row] += [text] * (len(part) + len(after))
    return _pad(ids, types, vocabulary)


def _lengths(count: int, room: int, generator: torch.Generator) -> Int64[Tensor, " count"]:
    """Words of each text: uniform in a random octave, at most ``room``."""
    octave = torch.randint(OCTAVES, (count,), generator=generator)
    shortest = SHORTEST << octave
    # the bound is a multiple of every ``shortest``, so that the rest is uniform
    more = torch.randint(SHORTEST << OCTAVES, (count,), generator=generator) % shortest
    return (shortest + more).clamp_(max=room)


def _pad(ids: list[list[int]], types: list[list[int]], vocabulary: Vocabulary) -> dict[str, Tensor]:
    """Rows of different lengths as tensors of the longest one's width."""
    width = max(map(len, ids), default=0)

    def fill(rows: list[list[int]], value: int) -> Tensor:
        full_rows = [row + [value] * (width - len(row)) for row in rows]
        return torch.tensor(full_rows, dtype=torch.int64).view(len(rows), width)

    texts = {
        "input_ids": fill(ids, vocabulary.pad_id),
        "attention_mask": fill([[1] * len(row) for row in ids], 0),
    }
    if vocabulary.types:
        texts["token_type_ids"] = fill(types, 0)
    return texts
