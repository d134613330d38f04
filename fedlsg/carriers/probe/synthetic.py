"""Synthetic public inputs: images and texts that a seed makes, from no data at all.

    dead_leaves    shapes of many sizes, each in front of those before it
    pink           noise whose amplitude falls as a power of the frequency
    bags_of_words  words of a public vocabulary in random order

Each is a function of its arguments and a CPU generator, so whatever is computed from it costs no
privacy.
Dead leaves: Lee, Mumford and Huang 2001, "Occlusion Models for Natural Images". As training data,
and spectrum noise: Baradad et al. 2021, "Learning to See by Looking at Noise". With a density of
sizes proportional to r^-3 the images look alike at every scale, as photographs do: edges, plain
areas, and occlusion.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlsg.randomness import check_cpu

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""

__all__ = ["Vocabulary", "bags_of_words", "dead_leaves", "pink"]

SMALLEST, LARGEST = 3.0, 0.5
"""Least radius in pixels (an eighth of the shorter side, if that is less); the largest as a share
of that side.
"""
COVER = 1.5
"""Pixels for each leaf, in squares of the least radius: an image of 32x32 has 75 leaves, which
leave 1 % bare.
"""
CHROMA = 0.4
"""Share of a colour that is each channel's own; the rest is a grey. Photographs have more of it,
noise less.
"""
AT_ONCE = 2**7
"""Images that are painted at once."""


def dead_leaves(
    count: int, shape: Shape, generator: torch.Generator
) -> Float[Tensor, "count c h w"]:
    """``count`` images (channels, height, width) in 0..1, float32: discs and turned squares in
    plain colours.

    Centres are uniform over the image; each leaf hides what is below it. Every second leaf is a
    square in its disc.
    Differs from the sources: the number of leaves is fixed (COVER), and a plain backing shows
    between them; colours are nearer to grey (CHROMA): on CIFAR-10 their gradients then lie closer
    to those of photographs.
    Guarantee: equal bits on every machine, for only additions, products, quotients and comparisons
    of IEEE numbers are used. Raises ValueError for a generator of another device, or an empty
    shape.
    """
    _check(count, shape, generator)
    parts = [torch.zeros(0, *shape)]
    for start in range(0, count, AT_ONCE):
        parts.append(_paint(min(AT_ONCE, count - start), shape, generator))
    return torch.cat(parts)


def _check(count: int, shape: Shape, generator: torch.Generator) -> None:
    check_cpu(generator)
    if count < 0 or min(shape) < 1:
        raise ValueError(f"expected {count=} >= 0 and at least one pixel and channel, got {shape=}")


def smallest(side: int) -> float:
    """Least radius on images with this shorter side."""
    return min(SMALLEST, side / 8)


def squared_radii(count: int, side: int, generator: torch.Generator) -> Float[Tensor, " count"]:
    """r^2 of leaves in pixels: r has a density proportional to r^-3 on ``smallest(side)`` ..
    LARGEST side.

    The inverse distribution function of r^-2 is linear: r^-2 = a - u (a - b) with u uniform.
    """
    a, b = smallest(side) ** -2, (LARGEST * side) ** -2
    return 1 / (a - torch.rand(count, generator=generator, dtype=torch.float64) * (a - b))


def _paint(count: int, shape: Shape, generator: torch.Generator) -> Float[Tensor, "count c h w"]:
    channels, height, width = shape
    side, pixels = min(height, width), height * width
    leaves = max(1, int(pixels / (COVER * smallest(side) ** 2)))
    total = count * leaves
    # 0: the backing's
    grey = torch.rand(count, 1, leaves + 1, generator=generator)
    of_channels = torch.rand(count, channels, leaves + 1, generator=generator)
    colours = (1 - CHROMA) * grey + CHROMA * of_channels
    centres = torch.rand(total, 2, generator=generator) * torch.tensor([height, width])
    squared = squared_radii(total, side, generator).float()
    turns = torch.rand(total, generator=generator)
    top = torch.zeros(count * pixels, dtype=torch.int64)
    reach = 1
    while reach < 2 * LARGEST * side:
        # leaves of one octave of radii touch pixels at most so far from the centre's own
        reach *= 2
        chosen = ((squared < reach**2) & (squared >= (reach / 2) ** 2)).nonzero().squeeze(1)
        for square in (0, 1):
            images = chosen[chosen % 2 == square]
            turned = turns[images] if square else None
            covered, which = _covered(
                centres[images], squared[images], turned, reach, (height, width)
            )
            image, layer = images[which] // leaves, images[which] % leaves
            top.scatter_reduce_(0, image * pixels + covered, layer + 1, "amax")
    index = top.view(count, 1, pixels).expand(-1, channels, -1)
    return colours.gather(2, index).view(count, *shape)


def _covered(
    centres: Tensor, squared: Tensor, turns: Tensor | None, reach: int, size: tuple[int, int]
) -> tuple[Int64[Tensor, " p"], Int64[Tensor, " p"]]:
    """Pixels that leaves cover, as row * width + column, and for each the leaf's place among those
    given.

    centres (n, 2); squared (n,) radii; turns (n,) make squares, None discs.
    """
    corner = centres.floor()
    steps = torch.arange(-reach, reach + 1)
    rows, columns = corner[:, :1] + steps, corner[:, 1:] + steps
    down = (rows + 0.5 - centres[:, :1]).unsqueeze(2)
    across = (columns + 0.5 - centres[:, 1:]).unsqueeze(1)
    limit = squared.view(-1, 1, 1)
    if turns is None:
        inside = down * down + across * across <= limit
    else:
        # turned by 0 to 90 degrees; t is the tangent of half the angle, as sine and cosine round as
        # a machine likes
        t = turns.view(-1, 1, 1)
        cos, sin = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
        first, second = cos * down - sin * across, sin * down + cos * across
        inside = torch.maximum(first * first, second * second) <= limit / 2
    inside &= ((rows >= 0) & (rows < size[0])).unsqueeze(2)
    inside &= ((columns >= 0) & (columns < size[1])).unsqueeze(1)
    which, row, column = inside.nonzero(as_tuple=True)
    return rows[which, row].long() * size[1] + columns[which, column].long(), which


MEAN, CONTRAST = 0.5, 0.22
"""Of the pixels, before those outside of 0..1 (one in 40) are cut off."""


ALPHA, CORRELATION = 1.5, 0.9
"""Photographs have an alpha of about 1; the gradients of CIFAR-10 are met better at 1.5. Between
any two channels.
"""


def pink(count: int, shape: Shape, generator: torch.Generator) -> Float[Tensor, "count c h w"]:
    """``count`` images (channels, height, width) in 0..1, float32: Gaussian noise with amplitude
    f^-ALPHA.

    Its power spectrum is f^(-2 ALPHA), with f = (f_y^2 + f_x^2)^(1/2) in cycles a pixel; the mean
    of an image has the amplitude of the lowest other frequency.
    Guarantee: a function of its arguments; the last bits may differ where torch has another Fourier
    transform.
    Raises ValueError for a generator of another device, or an empty shape.
    """
    _check(count, shape, generator)
    channels, height, width = shape
    white = torch.randn(count, channels + 1, height, width, generator=generator)
    common, of_channels = white[:, :1], white[:, 1:]
    mixed = math.sqrt(CORRELATION) * common + math.sqrt(1 - CORRELATION) * of_channels
    spectrum = torch.fft.rfft2(mixed) * _amplitude(height, width)
    noise: Tensor = torch.fft.irfft2(spectrum, s=(height, width))
    return (MEAN + CONTRAST * noise).clamp_(0, 1)


def _amplitude(height: int, width: int) -> Float[Tensor, "h half"]:
    """f^-ALPHA over the half plane of a real transform, scaled so that pixels have variance 1."""
    down = torch.fft.fftfreq(height, dtype=torch.float64)
    across = torch.fft.fftfreq(width, dtype=torch.float64)
    frequency = (down.unsqueeze(1) ** 2 + across.unsqueeze(0) ** 2).sqrt()
    frequency[0, 0] = 1 / max(height, width)
    amplitude = frequency**-ALPHA
    scaled: Tensor = (amplitude / amplitude.square().mean().sqrt())[:, : width // 2 + 1]
    return scaled.float()


SHORTEST, OCTAVES = 4, 4
"""Lengths: of the octaves 4 to 7, 8 to 15, 16 to 31, 32 to 63 words each one is equally likely."""
FEWEST = 2
"""Fewest words of a text, however short texts must be."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Vocabulary:
    """The words of a tokenizer and the tokens that it puts around a text.

    words: (V,) token numbers, the most frequent word first.
    around: the tokens before the first text, after it (and before the second of a pair), after the
    second.
    types: whether the model reads ``token_type_ids``: the text of a pair that a token belongs to, 0
    or 1.
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
        """1, or 2 for pairs."""
        return len(self.around) - 1

    @property
    def room(self) -> int:
        """Most words of each text."""
        return (self.max_length - sum(map(len, self.around))) // (len(self.around) - 1)


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
    below = (ranks**-1.0).cumsum(0)
    ids: list[list[int]] = [list(vocabulary.around[0]) for _ in range(count)]
    types: list[list[int]] = [[0] * len(row) for row in ids]
    for text, (long, after) in enumerate(zip(lengths, vocabulary.around[1:], strict=True)):
        drawn = torch.rand(int(long.sum()), generator=generator, dtype=torch.float64) * below[-1]
        places = torch.searchsorted(below, drawn, right=True).clamp_(max=len(below) - 1)
        words = vocabulary.words[places]
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


def _padded(
    ids: list[list[int]], types: list[list[int]], vocabulary: Vocabulary
) -> dict[str, Tensor]:
    """Rows of different lengths as tensors."""
    width = max(map(len, ids), default=0)

    def filled(rows: list[list[int]], value: int) -> Tensor:
        whole = [row + [value] * (width - len(row)) for row in rows]
        return torch.tensor(whole, dtype=torch.int64).view(len(rows), width)

    texts = {
        "input_ids": filled(ids, vocabulary.pad_id),
        "attention_mask": filled([[1] * len(row) for row in ids], 0),
    }
    if vocabulary.types:
        texts["token_type_ids"] = filled(types, 0)
    return texts
