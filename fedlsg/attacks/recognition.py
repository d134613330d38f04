"""Which examples of an update an attack recognises: a rank test for each, against public examples.

Symbols:
    M         public examples that no client holds: the pool
    g         a guess of an image, less the blind guess of its class
    b_i       public image i, less the blind guess
    b_i - b_j a mixture: a rival that has the covariance of images, and is no image
Sums are over the pixels that a guess knows. A similarity is a cosine, 1 for equal examples. A blind
guess of an image has 0, because the blind guess is subtracted from all images.

A guess that was made without the payload is as near to any public example as to the original, so
that the original is the nearest of all with a probability of 1 / (M + 1). No mean over examples
and no interval is needed: one image that is there is a leak. The rank alone decides; how similar
the guess is decides the word for it.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

FALSE_ALARM_CHANCE = 0.01
"""Probability at most that one attack of a run is said to recognise something without a payload."""
RECOVERED_IMAGE, RECOVERED_TEXT = 0.9, 0.6
"""Similarity from which on an image or a text is said to be recovered: of an image .8 of what it
has beyond the blind guess is explained. An image can be plain to see far below it (.5), and a
noisy texture be above .7.
"""
MAX_UNEXPLAINED = 0.01
"""A search that leaves a larger share of an update unexplained has found no batch that may have
made it.
"""
MAX_MIXED_IMAGES = 500
"""Public images that mixtures are made of, at most: 249,500 mixtures."""
ALIKE = 1e-4
"""Two public images make no mixture if |b_i - b_j|^2 is below this share of |b_i|^2 + |b_j|^2: of
equal images only rounding is left.
"""
EQUAL = 1e-6
"""A public image is the original itself if their squared distance is at most this share of the
squared norm of the original.
"""
COSINE_STEP = 1e-4
"""Cosines are rounded to multiples of it, and distances decide between equal ones: images that
differ in one number alone, such as their brightness, all have one direction.
"""
LEAST_DISTANCE = 1e-3
"""Distances of mixtures, as shares of |g|, are not distinguished below it. Of images that have one
number alone, such as their brightness, some mixture is always as near as that.
"""
POOL_NUMBERS = 2**24
"""Numbers of public images that are in memory at once, next to the images themselves."""
NO_PAIRS: Int64[Tensor, "2 0"] = torch.zeros(2, 0, dtype=torch.int64)
"""Of a pool without mixtures."""
ZERO_NORM = 1e-12
"""Stands for the norm of an image that is the blind guess: its similarity to any other is 0."""

Verdict = Literal["recovered", "recognisable", "not told apart", "undecided"]
LEAKS: tuple[Verdict, Verdict] = ("recovered", "recognisable")
"""Verdicts that say that the update gives the original away, the worse one first."""


@dataclass(frozen=True, kw_only=True)
class Recognition:
    """The verdict on one original.

    similarity: to the guess that is nearest to it.
    rival: of the public example that is nearest to any guess.
    rank: of ``similarity`` among those of public examples and of the blind guess: 1 for the
        largest.
    among: the original and the public examples; the blind guess is not counted.
    """

    similarity: float
    rival: float
    rank: int
    among: int
    verdict: Verdict

    @property
    def p(self) -> float:
        """The rank as a share of ``among``: how probable one as good is without the payload."""
        return min(self.rank / self.among, 1.0)

    @property
    def close(self) -> bool:
        """Whether a guess is nearer to the original than to any public example, without a leak.

        Then a mixture is as near as the original, or the pool is too small for the originals of the
        run.
        """
        return self.rank == 1 and self.verdict == "undecided" and self.p <= FALSE_ALARM_CHANCE


def pool_size(examples: int) -> int:
    """The examples that a verdict on so many originals needs at least, each original with its pool.

    ``unlike`` makes pools of as many public examples, which is one more than is needed.
    """
    return math.ceil(examples / FALSE_ALARM_CHANCE - 1e-9)


def recognise(
    own: Float[Tensor, " guesses"],
    pool: Float[Tensor, "guesses public"],
    *,
    examples: int,
    least: float,
    unexplained: float | None = None,
    blind: float = 0.0,
    mixture: float = 0.0,
) -> Recognition:
    """The verdict on one original, from the similarities of all guesses to it and to the pool.

    own: similarity of each guess to the original.
    pool: similarity of each guess to each public example.
    examples: originals that the run judges.
    least: similarity from which on an original is recovered, see ``RECOVERED_IMAGE``.
    unexplained: the search's own evidence, see ``MAX_UNEXPLAINED``; None without a search.
    blind: the similarity of the blind guess to the original: one more rival.
    mixture: the largest similarity of a guess to a mixture.

        verdict            pool_size reached   rank   above ``mixture``   search converged
        "recovered"        yes                 1      yes                 no matter
        "recognisable"     yes                 1      yes                 no matter
        "not told apart"   yes                 > 1    no matter           yes, or no search
        "undecided"        all other cases

    "Recovered" has a similarity of at least ``least``, "recognisable" a smaller one.

    Guarantee: if the guesses know no more of the original than of the pool, these two have a
    probability of at most ``FALSE_ALARM_CHANCE`` / examples, because the original has to be the
    nearest of all. Mixtures only make it smaller. Each public example is compared with the guess
    that is nearest to it, as the original is: no pair is chosen by the truth.
    """
    nearest, rivals = float(own.amax()), pool.amax(0)
    rival = float(rivals.amax()) if len(rivals) else 0.0
    rank = 1 + int((rivals >= nearest).sum()) + int(blind >= nearest)
    size = len(rivals) + 1
    verdict: Verdict = "undecided"
    if size >= pool_size(examples):
        if rank == 1 and nearest > mixture:
            verdict = "recovered" if nearest >= least else "recognisable"
        elif rank > 1 and (unexplained is None or unexplained <= MAX_UNEXPLAINED):
            verdict = "not told apart"
    return Recognition(similarity=nearest, rival=rival, rank=rank, among=size, verdict=verdict)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImagePool:
    """Public images of one class, by what each has beyond the blind guess of the class.

    rows: those of ``beyond`` that are in the pool; None: all.
    pairs: of rows of ``beyond``. Their mixtures, over sqrt(2), are in the pool after its images:
        they have the covariance of images.

    Guarantee: next to ``beyond`` it takes the memory of about ``POOL_NUMBERS`` numbers, however
    many mixtures there are: all sums go over a few pixels at a time.
    """

    blind: Float[Tensor, "*shape"]
    beyond: Float[Tensor, "images *shape"]
    rows: Int64[Tensor, " real"] | None = None
    pairs: Int64[Tensor, "2 mixtures"] = NO_PAIRS

    @property
    def real(self) -> Int64[Tensor, " real"]:
        """Rows of ``beyond`` that are in the pool."""
        return torch.arange(len(self.beyond)) if self.rows is None else self.rows

    def pixels(
        self, most: int | None = None
    ) -> Iterator[tuple[slice, Float[Tensor, "public pixels"]]]:
        """Windows of pixels, and their values in the images of the pool, or in the first ``most``.

        Mixtures come after the images.
        """
        flat, rows = self.beyond.flatten(1), self.real[:most]
        first, second = self.pairs[:, : None if most is None else most - len(rows)]
        step = max(POOL_NUMBERS // max(len(rows) + len(first), 1), 1)
        for start in range(0, flat.shape[1], step):
            window = slice(start, start + step)
            part = flat[:, window]
            yield window, torch.cat([part[rows], (part[first] - part[second]) / math.sqrt(2)])

    def similarities(
        self, guesses: Float[Tensor, "guesses *shape"]
    ) -> Float[Tensor, "guesses public"]:
        """Cosines beyond the blind guess, of the pixels that a guess knows: others are NaN.

        float64. Those that differ by less than ``COSINE_STEP`` are in the order of their distances,
        see ``ranked``.
        """
        vectors = (guesses.to(self.blind) - self.blind).flatten(1)
        known, unit = ~vectors.isnan(), F.normalize(vectors.nan_to_num(0.0))
        products = vectors.new_zeros(len(vectors), len(self.real) + self.pairs.shape[1])
        squares, distances = torch.zeros_like(products), torch.zeros_like(products)
        for window, public in self.pixels():
            products += unit[:, window] @ public.mT
            squares += known[:, window].to(vectors) @ public.square().mT
            for guess, distance in zip(vectors[:, window], distances, strict=True):
                distance += (public - guess).nan_to_num(0.0).square().sum(1)
        cosines = products / squares.sqrt().clamp(min=ZERO_NORM)
        lengths = vectors.nan_to_num(0.0).norm(dim=1, keepdim=True).clamp(min=ZERO_NORM)
        return ranked(cosines, distances.sqrt() / lengths)

    def nearest_mixture(self, guesses: Float[Tensor, "guesses *shape"]) -> float:
        """The largest similarity of a guess and a mixture b_i - b_j, by ``ranked``.

            cos_ij = g.(b_i - b_j) / (|g| |b_i - b_j|)
            distance_ij^2 = |g - (b_i - b_j)|^2 / |g|^2

        There are far more mixtures than images: a guess that is noise is nearer to one of them than
        to an original that it knows nothing of. They are softer than images, so a sharp guess has
        images as rivals as well.
        """
        largest = 0.0
        for g in (guesses.to(self.blind) - self.blind).flatten(1):
            projections, products = self._projections_and_products(g)
            squares = products.diag()
            sums = squares + squares.unsqueeze(1)
            mixture_squares = (sums - 2 * products).clamp(min=ZERO_NORM)
            mixture_norms = mixture_squares.sqrt()
            cosines = (projections.unsqueeze(1) - projections) / mixture_norms
            norm = g.nan_to_num(0.0).norm().clamp(min=ZERO_NORM)
            distance_squares = 1 + mixture_squares / norm**2 - 2 * cosines * mixture_norms / norm
            similarities = ranked(cosines, distance_squares.clamp(min=LEAST_DISTANCE**2).sqrt())
            similarities[mixture_squares < ALIKE * sums] = 0.0
            largest = max(largest, float(similarities.amax()))
        return largest

    def _projections_and_products(
        self, g: Float[Tensor, " pixels"]
    ) -> tuple[Float[Tensor, " public"], Float[Tensor, "public public"]]:
        """g.b_i / |g| and b_i.b_j of the first images, over the pixels that g knows."""
        known, unit = ~g.isnan(), F.normalize(g.nan_to_num(0.0), dim=0)
        projections, products = g.new_zeros(()), g.new_zeros(())
        for window, public in self.pixels(MAX_MIXED_IMAGES):
            projections = projections + public @ unit[window]
            visible = public[:, known[window]]
            products = products + visible @ visible.mT
        return projections, products

    def unlike(
        self,
        originals: Float[Tensor, "originals *shape"],
        least: int,
        generator: torch.Generator,
    ) -> "ImagePool":
        """The pool without the originals themselves, with mixtures up to ``least``.

        Fewer than two public images make none.
        """
        real, vectors = self.real, (originals.to(self.blind) - self.blind).flatten(1)
        distance_squares = vectors.new_zeros(len(vectors), len(real))
        for window, public in replace(self, pairs=NO_PAIRS).pixels():
            for original, squares in zip(vectors[:, window], distance_squares, strict=True):
                squares += (public - original).square().sum(1)
        other = real[(distance_squares > EQUAL * vectors.square().sum(1, keepdim=True)).all(0)]
        count, missing = len(real), least - len(other)
        if missing <= 0 or count < 2:
            return replace(self, rows=other, pairs=NO_PAIRS)
        first = torch.randint(count, (missing,), generator=generator)
        second = (first + torch.randint(1, count, (missing,), generator=generator)) % count
        return replace(self, rows=other, pairs=torch.stack([real[first], real[second]]))


def ranked(
    cosines: Float[Tensor, "guesses public"], distances: Float[Tensor, "guesses public"]
) -> Float[Tensor, "guesses public"]:
    """Cosines rounded to ``COSINE_STEP``, less up to a fifth of it by distance.

    d / (1 + d) maps distances to [0, 1), and a fifth of a step keeps the order of rounded cosines.
    It is one order for all images, the original included, so that a rank is one among equals.
    Cosines of 0 or less have no term of distance: the blind guess is as near to all images.
    distances: from the guess, over its norm.
    """
    share = distances.double() / (1 + distances.double()) * (cosines > 0)
    rounded = (cosines.double().clamp(max=1.0) / COSINE_STEP).round() * COSINE_STEP
    return rounded - share * COSINE_STEP / 5


@dataclass(frozen=True, kw_only=True, eq=False)
class TextPool:
    """Public texts as bags of tokens, compared by the cosine of tf-idf: rare tokens count most."""

    texts: Sequence[Counter[int]]

    @cached_property  # a pool does not change
    def vectors(self) -> list[dict[int, float]]:
        """The vector of each public text, of length 1."""
        return [self.vector(text) for text in self.texts]

    @cached_property  # a pool does not change
    def holding(self) -> Counter[int]:
        """How many public texts hold each token."""
        return Counter(token for text in self.texts for token in text)

    def vector(self, text: Mapping[int, int]) -> dict[int, float]:
        """Copies of each token times log((1 + texts) / (1 + texts that hold it)), at length 1."""
        count = 1 + len(self.texts)
        weights = {t: n * math.log(count / (1 + self.holding[t])) for t, n in text.items()}
        norm = math.hypot(*weights.values())
        return {token: weight / max(norm, ZERO_NORM) for token, weight in weights.items()}

    def similarities(self, guesses: Sequence[Mapping[int, int]]) -> Float[Tensor, "guesses public"]:
        """Cosine of each guess and each public text."""
        return torch.tensor(
            [[dot(guess, text) for text in self.vectors] for guess in map(self.vector, guesses)]
        )

    def unlike(
        self, originals: Sequence[Counter[int]], least: int, generator: torch.Generator
    ) -> "TextPool":
        """The pool without the originals, with synthetic texts up to ``least``.

        A synthetic text has random tokens of public texts, as many as one of these texts.
        """
        other = [text for text in self.texts if text not in originals]
        tokens = torch.tensor([token for text in self.texts for token in text.elements()])
        if not len(tokens):
            return TextPool(texts=other)
        for number in range(least - len(other)):
            length = self.texts[number % len(self.texts)].total()
            places = torch.randint(len(tokens), (length,), generator=generator)
            other.append(Counter(tokens[places].tolist()))
        return TextPool(texts=other)


def dot(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Inner product of two sparse vectors."""
    return sum(weight * other.get(token, 0.0) for token, weight in one.items())
