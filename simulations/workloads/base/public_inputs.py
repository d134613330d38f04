"""Public inputs from no data at all: synthetic images, bags of words, and a user's function; and
how images are stored.

A workload's model is given what it would be given, were they stored as its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg import user_code
from fedlsg.carriers.probe.carrier import Draw
from fedlsg.carriers.probe.synthetic import dead_leaves, pink
from fedlsg.carriers.probe.synthetic_texts import Vocabulary, bags_of_words

LEAST_SIDE = 8
"""Fewest pixels on a side of what is taken for an image."""
CHANNELS = (1, 3)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pixels:
    """How a workload stores images.

    form: of one stored image, with ``channel`` the place of its channels, None for grey images
        without.
    black, white: stored values of 0 and 1.
    whole: whether they are stored as uint8, else as float32.
    prepare: from stored images to the model's inputs: the workload's own, so that it is the same
        normalisation.
    """

    form: tuple[int, ...]
    channel: int | None = 0
    black: float = 0.0
    white: float = 255.0
    whole: bool = True
    prepare: Callable[[Any], Any]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        sides = [side for place, side in enumerate(self.form) if place != self.channel]
        return (1 if self.channel is None else self.form[self.channel], sides[0], sides[1])

    def inputs(self, images: Float[Tensor, "b c h w"]) -> Any:
        """The model's inputs for images in 0..1."""
        stored = images * (self.white - self.black) + self.black
        stored = stored.round().to(torch.uint8) if self.whole else stored
        placed = stored.squeeze(1) if self.channel is None else stored.movedim(1, self.channel + 1)
        return self.prepare(np.ascontiguousarray(placed.numpy()))

    def images(self, stored: Any) -> Float[Tensor, "b c h w"]:
        """Stored images as images in 0..1."""
        scaled = (torch.as_tensor(stored).float() - self.black) / (self.white - self.black)
        return scaled.unsqueeze(1) if self.channel is None else scaled.movedim(self.channel + 1, 1)


def find_pixels(public: Any, prepare: Callable[[Any], Any]) -> Pixels | None:
    """How some stored public rows hold images; None where they hold something else.

    Images are (channels, height, width) or channels last, or uint8 without channels. Values are
    0..255 in integers; in floats 0..1, 0..255 or -1..1 if all are there, else standardised ones:
    black is -2 and white 2.
    """
    array = public if isinstance(public, np.ndarray) else np.zeros(0)
    form: tuple[int, ...] = array.shape[1:]
    dtype = array.dtype
    if dtype != np.uint8 and dtype != np.float32:
        return None
    if len(form) == 2 and dtype == np.uint8:
        channel = None
    elif len(form) == 3 and (form[0] in CHANNELS or form[2] in CHANNELS):
        channel = 0 if form[0] in CHANNELS else 2
    else:
        return None
    if min(side for place, side in enumerate(form) if place != channel) < LEAST_SIDE:
        return None
    black, white = (
        (0.0, 255.0) if dtype == np.uint8 else _range(float(array.min()), float(array.max()))
    )
    return Pixels(
        form=form,
        channel=channel,
        black=black,
        white=white,
        whole=dtype == np.uint8,
        prepare=prepare,
    )


def _range(least: float, most: float) -> tuple[float, float]:
    known = ((0.0, 1.0), (0.0, 255.0), (-1.0, 1.0))
    return next(
        ((black, white) for black, white in known if black <= least and most <= white), (-2.0, 2.0)
    )


def image_draws(pixels: Pixels) -> Mapping[str, Draw]:
    """Synthetic images by name, the default first."""
    return {"leaves": partial(_draw, dead_leaves, pixels), "pink": partial(_draw, pink, pixels)}


def _draw(
    make: Callable[..., Tensor], pixels: Pixels, count: int, generator: torch.Generator
) -> Any:
    return pixels.inputs(make(count, pixels.shape, generator))


@dataclass(frozen=True, eq=False)
class CheckedDraw:
    """``draw(count, generator)`` of a user; what it gives must have one row for each input that was
    asked for.
    """

    draw: Draw
    name: str

    def __call__(self, count: int, generator: torch.Generator) -> Any:
        """Raises ValueError for something else; ImportError, naming file and line, for code that
        fails.
        """
        drawn = user_code.run(self.name, lambda: self.draw(count, generator))
        inputs = drawn[0] if isinstance(drawn, tuple) and len(drawn) == 2 else drawn
        fields = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
        if not fields or not all(
            isinstance(value, Tensor) and value.ndim and len(value) == count for value in fields
        ):
            forms = [
                tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                for value in fields
            ]
            raise ValueError(
                f"probe source {self.name} gave {forms} for count={count}: return a tensor (count, "
                "...), a dict of them, or a pair (inputs, targets)"
            )
        return drawn


WORD_STARTS = ("Ġ", "▁")
"""Marks of byte-pair and sentencepiece vocabularies before the first piece of a word."""
TRIED = 100
"""Words that are tried until the tokenizer gives one back as one token."""


@dataclass(frozen=True, eq=False)
class WordDraw:
    """``draw(count, generator)``: bags of words as the model takes them; the vocabulary is read at
    the first draw.

    texts: 1, or 2 for pairs.
    max_length: most tokens of a text or pair.
    """

    tokenizer: Any
    texts: int
    max_length: int

    def __call__(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """``count`` texts."""
        return bags_of_words(count, self.vocabulary, generator)

    @cached_property  # its fields never change
    def vocabulary(self) -> Vocabulary:
        """The words of the tokenizer in the order of their numbers, which is about that of their
        frequencies.
        """
        words = words_of(self.tokenizer)
        return Vocabulary(
            words=torch.tensor(words),
            around=tokens_around(self.tokenizer, self.texts, words),
            pad_id=int(self.tokenizer.pad_token_id),
            types="token_type_ids" in self.tokenizer.model_input_names,
            max_length=self.max_length,
        )


def words_of(tokenizer: Any) -> list[int]:
    """Numbers of the tokens that are words of two letters or more, ascending; of all but special
    ones if none is.
    """
    special = set(tokenizer.all_special_ids)
    tokens = sorted(
        (number, token) for token, number in tokenizer.get_vocab().items() if number not in special
    )
    mark = next(
        (start for start in WORD_STARTS if any(token.startswith(start) for _, token in tokens)), ""
    )
    bare = (
        (number, token.removeprefix(mark)) for number, token in tokens if token.startswith(mark)
    )
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
        f"{type(tokenizer).__name__} gives no word of its vocabulary back as one token: "
        "source=tokens has none"
    )
