"""Workloads of a user's own that classify no images in [0, 1]: regression, several labels, words,
scales.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import fedlsg

SETTINGS = {
    "clients": 2,
    "rounds": 2,
    "sample_rate": 0.2,
    "noise_multiplier": 2.0,
    "method": "rgp",
    "rank": 1,
}
W = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
SIDE = 8


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (count, 8) and three linear functions of them."""
    x = np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)
    return x, x @ W


def several(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The signs of the functions as three labels."""
    x, y = rows(count, seed)
    return x, (y > 0).astype(np.float32)


def largest(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest of the functions as a class."""
    x, y = rows(count, seed)
    return x, y.argmax(1)


def words(count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Numbers of words, and the next word of each."""
    drawn = np.random.default_rng(seed).integers(0, 11, size=(count, 7))
    return {"ids": drawn[:, :-1]}, drawn[:, 1:]


def bars(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images in [-1, 1] with a bright bar that says the class."""
    x = np.random.default_rng(seed).random((count, 1, SIDE, SIDE)).astype(np.float32) * 0.3
    y = np.arange(count) % 3
    for row, label in enumerate(y):
        x[row, 0, 2 * label : 2 * label + 3] += 0.7
    x[:, :, 0, :2] = [0, 1]
    return 2 * x - 1, y


class Next(nn.Module):
    """The next word from each word."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 6)
        self.classifier = nn.Linear(6, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.tanh(self.hidden(self.table(ids))))


def net() -> nn.Module:
    """Three numbers of a row."""
    return nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))


def of_images() -> nn.Module:
    """Three numbers of an image."""
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 16), nn.Tanh(), nn.Linear(16, 3))


def hundredfold(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """100 times the cross-entropy."""
    return 100 * F.cross_entropy(outputs, targets, reduction="none")


def _made(model, data, loss) -> fedlsg.Workload:
    return fedlsg.Workload(
        model=model, train=data(60, 1), test=data(24, 2), loss=loss, settings=SETTINGS
    )


def regression() -> fedlsg.Workload:
    return _made(net, rows, F.mse_loss)


def labels() -> fedlsg.Workload:
    return _made(net, several, nn.BCEWithLogitsLoss())


def classes() -> fedlsg.Workload:
    return _made(net, largest, nn.CrossEntropyLoss())


def scaled() -> fedlsg.Workload:
    return _made(net, largest, hundredfold)


def sequence() -> fedlsg.Workload:
    return _made(Next, words, nn.CrossEntropyLoss())


def images() -> fedlsg.Workload:
    return _made(of_images, bars, nn.CrossEntropyLoss())


class OfTokens(Next):
    """The class of a text, from numbers of words under the name that models of transformers give
    them.
    """

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids).mean(1)


def tokens() -> fedlsg.Workload:
    def texts(count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        inputs, following = words(count, seed)
        return {"input_ids": inputs["ids"]}, following[:, 0]

    return _made(OfTokens, texts, nn.CrossEntropyLoss())
