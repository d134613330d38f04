"""Small tasks that defaults are measured on: data that scikit-learn ships or that are made here,
and a model.

``KNOWN`` were looked at while the rule of ``fedlsg.training.auto`` was chosen. ``HELD_OUT`` were
named in this file before any of them was run with any setting; ``LATER`` before any of them was
run, after ``HELD_OUT`` had changed the rule. Inputs have a root mean square of about 1, as users
are asked to have.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn

Rows = tuple[Tensor, Tensor]
SEED = 20261125
PIXELS = 12
TOKENS, WORDS, WIDTH = 16, 24, 24


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data, and a model that is built anew for each run."""

    train: Rows
    test: Rows
    model: Callable[[], nn.Module]

    @property
    def regression(self) -> bool:
        return self.train[1].is_floating_point()

    def loss(self) -> Callable[..., Tensor]:
        return nn.MSELoss() if self.regression else nn.CrossEntropyLoss()


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> Callable[[], nn.Module]:
    """Dense layers of these widths."""

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), activation()]
        return nn.Sequential(*layers[:-1])

    return build


def cnn(channels: int, classes: int, *, side: int, width: int = 12) -> Callable[[], nn.Module]:
    """Two convolutions with GroupNorm, pooled, and a dense layer."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.GroupNorm(3, width),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.GroupNorm(3, 2 * width),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * (side // 4) ** 2, classes),
        )

    return build


class Encoder(nn.Module):
    """Tokens, places, one transformer layer with LayerNorm before each half, the mean of all
    places, a dense layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(TOKENS, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.classifier = nn.Linear(WIDTH, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(TOKENS, device=ids.device).expand_as(ids))
        y = self.norms[0](x)
        weights = torch.softmax(self.query(y) @ self.key(y).mT / WIDTH**0.5, -1)
        x = x + self.out(weights @ self.value(y))
        x = x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))
        logits: Tensor = self.classifier(self.norms[2](x).mean(1))
        return logits


def split(
    x: np.ndarray, y: np.ndarray, test: int, model: Callable[[], nn.Module], *, scale: bool = False
) -> Task:
    """Rows in random order, the first ``test`` of them to test on; columns of mean 0 and variance 1
    if ``scale``.
    """
    order = np.random.default_rng(SEED).permutation(len(x))
    if scale:
        x = (x - x.mean(0)) / x.std(0)
    if y.dtype.kind == "f":
        y = ((y - y.mean()) / y.std())[:, None]
    inputs = torch.as_tensor(x[order], dtype=torch.long if x.dtype.kind == "i" else torch.float32)
    targets = torch.as_tensor(y[order], dtype=torch.float32 if y.dtype.kind == "f" else torch.long)
    return Task(
        train=(inputs[test:], targets[test:]), test=(inputs[:test], targets[:test]), model=model
    )


def teacher(*, other: float = 0.0) -> Task:
    """The largest of four random linear functions of 20 normal inputs, ``other`` times another one
    added.
    """
    generator = np.random.default_rng(1)
    x, W = generator.standard_normal((6500, 20)), generator.standard_normal((20, 4))
    W = W + other * generator.standard_normal((20, 4))
    return split(x, (x @ W).argmax(1), 4000, mlp(20, 64, 64, 4))


def digits() -> Task:
    x, y = datasets.load_digits(return_X_y=True)
    return split(x / 8 - 1, y, 450, mlp(64, 64, 10, activation=nn.Tanh))


def cancer() -> Task:
    x, y = datasets.load_breast_cancer(return_X_y=True)
    return split(x, y, 170, mlp(30, 32, 2), scale=True)


def wine() -> Task:
    x, y = datasets.load_wine(return_X_y=True)
    return split(x, y, 71, mlp(13, 32, 3), scale=True)


def friedman() -> Task:
    x, y = datasets.make_friedman1(7000, noise=1.0, random_state=0)
    return split(x, y, 4000, mlp(10, 64, 64, 1), scale=True)


def columns54() -> Task:
    """Seven unequal classes, 54 columns of which 15 say something and 10 repeat them."""
    x, y = datasets.make_classification(
        9000,
        54,
        n_informative=15,
        n_redundant=10,
        n_classes=7,
        class_sep=1.5,
        flip_y=0.02,
        random_state=3,
        weights=[0.36, 0.3, 0.12, 0.06, 0.06, 0.05, 0.05],
    )
    return split(x, y, 4000, mlp(54, 64, 64, 7), scale=True)


def digits_cnn() -> Task:
    """Digits as images of 8 x 8, a CNN with GroupNorm."""
    x, y = datasets.load_digits(return_X_y=True)
    return split(x.reshape(-1, 1, 8, 8) / 8 - 1, y, 450, cnn(1, 10, side=8))


def gratings() -> Task:
    """Waves in noise, of four directions and two lengths, at any place: eight classes, a CNN with
    GroupNorm.
    """
    generator = np.random.default_rng(2)
    y = generator.integers(8, size=5000)
    angle, wave = np.pi / 4 * (y % 4), np.where(y < 4, 1.0, 1.8)
    row, column = np.mgrid[:PIXELS, :PIXELS]
    across = np.cos(angle)[:, None, None] * row + np.sin(angle)[:, None, None] * column
    phase = generator.uniform(0, 2 * np.pi, (5000, 1, 1))
    x = np.sin(wave[:, None, None] * across + phase) + 0.7 * generator.standard_normal(
        (5000, PIXELS, PIXELS)
    )
    return split(x[:, None], y, 2000, cnn(1, 8, side=PIXELS))


def photos() -> Task:
    """Of which of the two photographs of scikit-learn a patch of 8 x 8 is, a wide dense layer."""
    generator = np.random.default_rng(3)
    images = [image / 64.0 - 2 for image in datasets.load_sample_images().images]
    y = generator.integers(2, size=6000)
    places = generator.integers(0, (images[0].shape[0] - 8, images[0].shape[1] - 8), (6000, 2))
    x = np.stack(
        [images[k][r : r + 8, c : c + 8].ravel() for k, (r, c) in zip(y, places, strict=True)]
    )
    return split(x, y, 2500, mlp(192, 128, 2))


def sequences(*, first: int = 0, seed: int = 4) -> Task:
    """Which of four words occurs most often, a small transformer."""
    generator = np.random.default_rng(seed)
    y = generator.integers(4, size=5000)
    ids = generator.integers(WORDS, size=(5000, TOKENS))
    ids = np.where(generator.random((5000, TOKENS)) < 0.2, first + y[:, None], ids)
    return split(ids, y, 2000, Encoder)


def diabetes() -> Task:
    x, y = datasets.load_diabetes(return_X_y=True)
    return split(x, y, 132, mlp(10, 32, 1), scale=True)


def rings() -> Task:
    """Two rings of points with noise, two inputs."""
    x, y = datasets.make_circles(4000, factor=0.5, noise=0.12, random_state=5)
    return split(x, y, 2000, mlp(2, 32, 32, 2, activation=nn.Tanh), scale=True)


def topics() -> Task:
    """Counts of 400 words in texts of about 60, of eight topics; rows scaled to a root mean square
    of 1.
    """
    generator = np.random.default_rng(6)
    themes = generator.dirichlet(np.full(400, 0.1), 8)
    y = generator.integers(8, size=6000)
    common = generator.dirichlet(np.full(400, 0.3))
    x = generator.poisson(60 * (0.25 * themes[y] + 0.75 * common)).astype(float)
    x *= 20 / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
    return split(x, y, 2500, mlp(400, 64, 8))


def wide() -> Task:
    """Three classes of 100 columns, a layer of 256 units."""
    x, y = datasets.make_classification(
        9000,
        100,
        n_informative=30,
        n_redundant=0,
        n_classes=3,
        n_clusters_per_class=3,
        class_sep=2.0,
        random_state=7,
    )
    return split(x, y, 4000, mlp(100, 256, 3), scale=True)


def friedman2() -> Task:
    """A smooth function of four inputs that interact, with noise; silu units."""
    x, y = datasets.make_friedman2(6000, noise=60.0, random_state=8)
    return split(x, y, 3000, mlp(4, 48, 48, 1, activation=nn.SiLU), scale=True)


def hastie() -> Task:
    """Whether ten normal inputs lie outside of a sphere."""
    x, y = datasets.make_hastie_10_2(5000, random_state=9)
    return split(x, (y > 0).astype(int), 2000, mlp(10, 64, 64, 2))


def quantiles() -> Task:
    """Five shells around a point, six inputs, tanh units."""
    x, y = datasets.make_gaussian_quantiles(
        n_samples=5000, n_features=6, n_classes=5, random_state=10
    )
    return split(x, y, 2000, mlp(6, 96, 5, activation=nn.Tanh))


def friedman3() -> Task:
    x, y = datasets.make_friedman3(5000, noise=0.1, random_state=11)
    return split(x, y, 2500, mlp(4, 64, 64, 1), scale=True)


def sparse() -> Task:
    """A linear function of four of 30 inputs, with noise."""
    x, y = datasets.make_sparse_uncorrelated(4000, 30, random_state=12)
    return split(x, y, 2000, mlp(30, 64, 1, activation=nn.Tanh))


def moons() -> Task:
    x, y = datasets.make_moons(3000, noise=0.2, random_state=13)
    return split(x, y, 1500, mlp(2, 64, 2), scale=True)


KNOWN = {
    task.__name__: cache(task) for task in (teacher, digits, cancer, wine, friedman, columns54)
}
HELD_OUT = {
    task.__name__: cache(task)
    for task in (digits_cnn, gratings, photos, sequences, diabetes, rings, topics, wide, friedman2)
}
LATER = {task.__name__: cache(task) for task in (hastie, quantiles, friedman3, sparse, moons)}
TASKS = KNOWN | HELD_OUT | LATER
