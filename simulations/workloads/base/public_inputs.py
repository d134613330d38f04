"""Public inputs from no data at all: synthetic images, bags of words, and a user's function.

``Pixels`` says how a workload stores images: synthetic ones take this form, so that the model gets
them as it gets the workload's own.
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
"""An array with fewer pixels on a side is not taken for an image."""
CHANNELS = (1, 3)
"""Numbers of channels of images."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pixels:
    """How a workload stores images.

    form: the shape of one stored image.
    channel: the place of the channels in ``form``; None for grey images without that axis.
    black: the stored value of 0.
    white: the stored value of 1.
    whole: whether they are stored as uint8, else as float32.
    prepare: makes the model's inputs of stored images, with the workload's own normalisation.
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
    """How some stored public rows hold images; None if they hold something else.

    Images are (channels, height, width) or channels last, or uint8 without channels. Integers are
    0..255. The range of floats is the first of 0..1, 0..255 and -1..1 that has all values. Others
    are taken for standardised ones: black is -2 and white 2, two standard deviations.
    """
    if not isinstance(public, np.ndarray) or public.dtype not in (np.uint8, np.float32):
        return None
    form: tuple[int, ...] = public.shape[1:]
    dtype = public.dtype
    if len(form) == 2 and dtype == np.uint8:
        channel = None
    elif len(form) == 3 and (form[0] in CHANNELS or form[2] in CHANNELS):
        channel = 0 if form[0] in CHANNELS else 2
    else:
        return None
    if min(side for place, side in enumerate(form) if place != channel) < LEAST_SIDE:
        return None
    black, white = 0.0, 255.0
    if dtype == np.float32:
        black, white = _range(float(public.min()), float(public.max()))
    return Pixels(
        form=form,
        channel=channel,
        black=black,
        white=white,
        whole=dtype == np.uint8,
        prepare=prepare,
    )


def _range(least: float, most: float) -> tuple[float, float]:
    """The values of black and white in images with this smallest and largest value."""
    for black, white in ((0.0, 1.0), (0.0, 255.0), (-1.0, 1.0)):
        if black <= least and most <= white:
            return black, white
    return -2.0, 2.0


def image_draws(pixels: Pixels) -> Mapping[str, Draw]:
    """Synthetic images by name, the default first."""
    return {"leaves": partial(_draw, dead_leaves, pixels), "pink": partial(_draw, pink, pixels)}


def _draw(
    make: Callable[..., Tensor], pixels: Pixels, count: int, generator: torch.Generator
) -> Any:
    """The model's inputs for ``count`` images that ``make`` draws."""
    return pixels.inputs(make(count, pixels.shape, generator))


@dataclass(frozen=True, eq=False)
class CheckedDraw:
    """A user's ``draw(count, generator)``, whose result is checked: one row for each input.

    name: of the function, for messages.
    """

    draw: Draw
    name: str

    def __call__(self, count: int, generator: torch.Generator) -> Any:
        """What the function draws.

        Raises ValueError for another number of rows; ImportError, naming file and line, for code
        that fails.
        """
        result = user_code.run(self.name, lambda: self.draw(count, generator))
        inputs = result[0] if isinstance(result, tuple) and len(result) == 2 else result
        fields = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
        forms: list[Any] = [
            tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            for value in fields
        ]
        is_complete = all(isinstance(form, tuple) and form[:1] == (count,) for form in forms)
        if not forms or not is_complete:
            raise ValueError(
                f"probe source {self.name} gave {forms} for count={count}: return a tensor (count, "
                "...), a dict of them, or a pair (inputs, targets)"
            )
        return result


WORD_STARTS = ("Ġ", "▁")
"""Marks of byte-pair and sentencepiece vocabularies before the first piece of a word."""
MAX_WORDS_TRIED = 100
"""The most words that are tried until the tokenizer gives one back as one token."""


@dataclass(frozen=True, eq=False)
class WordDraw:
    """Draws bags of words as the model takes them; the vocabulary is read at the first draw.

    tokenizer: of the model.
    texts: 1, or 2 for pairs.
    max_length: the most tokens of a text or pair.
    """

    tokenizer: Any
    texts: int
    max_length: int

    def __call__(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """``count`` texts."""
        return bags_of_words(count, self.vocabulary, generator)

    @cached_property  # its fields never change
    def vocabulary(self) -> Vocabulary:
        """The words of the tokenizer, ordered by number, which is about by frequency."""
        words = words_of(self.tokenizer)
        return Vocabulary(
            words=torch.tensor(words),
            around=tokens_around(self.tokenizer, self.texts, words),
            pad_id=int(self.tokenizer.pad_token_id),
            types="token_type_ids" in self.tokenizer.model_input_names,
            max_length=self.max_length,
        )


def words_of(tokenizer: Any) -> list[int]:
    """Numbers of the tokens that are words of two letters or more, ascending.

    If no token is such a word, the numbers of all tokens that are not special.
    """
    special = set(tokenizer.all_special_ids)
    tokens = sorted(
        (number, token) for token, number in tokenizer.get_vocab().items() if number not in special
    )
    marks = [mark for mark in WORD_STARTS if any(token.startswith(mark) for _, token in tokens)]
    mark = marks[0] if marks else ""
    words = []
    for number, token in tokens:
        word = token.removeprefix(mark)
        if token.startswith(mark) and len(word) > 1 and word.isalpha():
            words.append(number)
    return words or [number for number, _ in tokens]


def tokens_around(tokenizer: Any, texts: int, words: list[int]) -> tuple[tuple[int, ...], ...]:
    """The special tokens before the first of ``texts`` texts, after it, and after the second.

    words: numbers of tokens that are words.
    Raises ValueError for a tokenizer that gives none of them back as the one token that it is.
    """
    for number in words[:MAX_WORDS_TRIED]:
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
