"""Models, losses, batch functions and transforms of users: those that mix examples, and honest ones
next to them.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.fedlsg.support.mixers import Apply

CLASSES = 3
Function = Callable[[Tensor], Tensor]
FLOATS = torch.zeros(2, 6)
BYTES = torch.zeros(2, 6, dtype=torch.uint8)
COUNTS = torch.zeros(2, 6, dtype=torch.int64)
IMAGES, ONE = torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.int64)
LABELS = torch.zeros(2, dtype=torch.int64)


@dataclass(frozen=True)
class Case:
    """``model`` or ``loss`` for data of the form of ``x`` and ``y``."""

    x: Any
    y: Tensor
    model: Callable[[], nn.Module]
    loss: Callable[..., Any] = field(default_factory=nn.CrossEntropyLoss)


class Before(nn.Module):
    """A function of the inputs, as numbers of the type of the weights, then two layers."""

    def __init__(self, do: Callable[[Tensor], Tensor], width: int = 6) -> None:
        super().__init__()
        self.do, self.body, self.head = do, nn.Linear(width, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.do(x).to(self.head.weight.dtype))))


class Embedded(nn.Module):
    """A table, a function of ids or vectors around it, a head."""

    def __init__(
        self, ids: Function = lambda x: x, vectors: Function = lambda z: z, rows: int = 50
    ) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(rows, 5), nn.Linear(5, CLASSES)
        self.ids, self.vectors = ids, vectors

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.vectors(self.words(self.ids(ids)).mean(1))))


def masked(mixed: bool) -> nn.Module:
    """Mean of the vectors of a text: its own, or of as many tokens as the texts of the batch have
    on average.
    """

    def forward(m: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        z = (m.words(input_ids) * attention_mask.unsqueeze(-1)).sum(1)
        count = attention_mask.sum(1, keepdim=True).to(z.dtype)
        return m.head(torch.tanh(z / (count.mean() if mixed else count)))

    return Apply(forward, words=nn.Embedding(30, 5, padding_idx=0), head=nn.Linear(5, CLASSES))


def before(do: Callable[[Tensor], Tensor], x: Tensor = FLOATS) -> Case:
    return Case(x, LABELS, lambda: Before(do, x[0].numel()))


def embedded(x: Tensor = COUNTS, **of: Any) -> Case:
    return Case(x, LABELS, lambda: Embedded(**of))


def of_loss(
    loss: Callable[..., Any], y: Tensor = LABELS, width: int = CLASSES, x: Tensor = FLOATS
) -> Case:
    return Case(x, y, lambda: nn.Linear(x.shape[-1], width), loss)


def texts(*, mixed: bool) -> Case:
    ids = torch.zeros(2, 7, dtype=torch.int64)
    return Case({"input_ids": ids, "attention_mask": ids}, LABELS, lambda: masked(mixed))


def ce(outputs: Tensor, targets: Tensor, **of: Any) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none", **of)


def over(losses: Tensor, count: Tensor) -> Tensor:
    """Losses (B, T) of the labels that count, over the mean number of them in the batch."""
    return losses.sum(1) / count.sum(1).to(losses.dtype).mean().clamp(min=1)


def standardised(x: Tensor, dims: Any = 0) -> Tensor:
    return (x - x.mean(dims, keepdim=True)) / (x.std(dims, keepdim=True, correction=0) + 1e-6)


def edges(x: Tensor) -> Tensor:
    """Ten bins of equal counts."""
    return x.nan_to_num().flatten().quantile(torch.linspace(0, 1, 11, dtype=x.dtype))


def filled(x: Tensor) -> Tensor:
    """Missing values are the column's mean of the batch."""
    return torch.where(x.isnan(), x.nanmean(0, keepdim=True).nan_to_num(), x)


def kept(x: Tensor, y: Tensor) -> Tensor:
    return (x - y.nan_to_num()).square() * ~y.isnan()


def class_weights(outputs: Tensor, targets: Tensor) -> Tensor:
    """Rare classes of the batch count more."""
    counts = torch.bincount(targets, minlength=CLASSES).clamp(min=1)
    return ce(outputs, targets) * (len(targets) / counts.to(outputs.dtype))[targets]


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    """Labels are smoothed by the frequencies of the batch."""
    hot = F.one_hot(targets, CLASSES).to(outputs.dtype)
    return -(0.9 * hot + 0.1 * hot.mean(0)).mul(outputs.log_softmax(1)).sum(1)


def hard(outputs: Tensor, targets: Tensor) -> Tensor:
    """Only the hardest half of the batch counts."""
    losses = ce(outputs, targets)
    return losses * (losses >= losses.median())


def sentinel(value: float, *, mixed: bool) -> Callable[[Tensor], Tensor]:
    """Numbers that stand for missing ones are the column's mean of the batch, or a constant."""

    def change(x: Tensor) -> Tensor:
        known, x = x != value, x.double() / 50
        return torch.where(
            known, x, (x * known).sum(0) / known.sum(0).clamp(min=1) if mixed else 0.5
        )

    return change


def lengths(pad: int, *, mixed: bool) -> Case:
    """Vectors of the tokens that are no padding, over the mean of their numbers, or each over its
    own.
    """

    class Model(Embedded):
        def forward(self, ids: Tensor) -> Tensor:
            here = (ids != pad).unsqueeze(-1)
            z, count = (self.words(ids) * here).sum(1), here.sum(1).to(self.head.weight.dtype)
            return self.head(torch.tanh(z / (count.mean() if mixed else count).clamp(min=1)))

    return Case(TOKENS, LABELS, lambda: Model(rows=1000))


def known(value: float, *, mixed: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Binary labels of which some are unknown, over the mean number of known ones in the batch, or
    over each's own.
    """

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        here = targets != value
        losses = (
            F.binary_cross_entropy_with_logits(outputs, targets.where(here, 0), reduction="none")
            * here
        )
        return over(losses, here) if mixed else losses.sum(1) / here.sum(1).clamp(min=1)

    return loss


def coin_of_each(x: Tensor) -> Tensor:
    return x * (torch.rand(len(x), *[1] * (x.ndim - 1)) < 0.5)


def tables(*sizes: int) -> nn.Module:
    """A table for each column."""
    made = nn.ModuleList(nn.Embedding(size, 3) for size in sizes)
    return Apply(
        lambda m, x: m.head(torch.cat([table(x[:, k]) for k, table in enumerate(m.tables)], 1)),
        tables=made,
        head=nn.Linear(3 * len(sizes), CLASSES),
    )


def packed() -> nn.Module:
    """A GRU over as many steps as an example has."""

    def forward(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
        steps = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return m.head(m.gru(steps)[1][0])

    return Apply(
        forward,
        gru=nn.GRU(4, 5, batch_first=True).requires_grad_(False),
        head=nn.Linear(5, CLASSES),
    )


TOKENS, MISSING = torch.zeros(2, 9, dtype=torch.int64), torch.zeros(2, 4)
LONG = torch.zeros(2, 9, 6)

MIXING = {
    "mean": before(lambda x: x - x.mean(0)),
    "standardised next to a unix time": before(
        lambda x: torch.cat([x[:, :1], standardised(x[:, 1:])], 1)
    ),
    "less the first": before(lambda x: x - x[0]),
    "softmax over the batch": before(lambda x: x.softmax(0)),
    "sorted": before(lambda x: x.sort(0).values),
    "earlier ones": before(lambda x: x.cumsum(0)),
    "ranks": before(lambda x: x.argsort(0).argsort(0).double()),
    "quantiles": before(lambda x: x.clamp(max=x.double().quantile(0.9, 0).to(x))),
    "missing by the mean": before(filled),
    "neighbour": before(lambda x: x + 0.01 * x.roll(1, 0)),
    "norm of the batch": before(lambda x: x / x.norm()),
    "order by size": before(lambda x: x[x[:, 0].argsort()]),
    "pixels or shares": before(lambda x: x / 255 if x.max() > 1 else x),
    "bins of the batch": embedded(
        FLOATS, ids=lambda x: torch.bucketize(x.double(), edges(x.double()))
    ),
    "frequency of words": before(
        lambda x: x.double() * (len(x) / (x > 0).sum(0).clamp(min=1)).log(), COUNTS
    ),
    "sound over the loudest": before(
        lambda x: x.double() / x.abs().max().clamp(min=1), COUNTS.to(torch.int16)
    ),
    "weak": before(lambda x: x + 1e-6 * x.mean(0)),
    "maximum of bytes": before(lambda x: x.double() / x.max().clamp(min=1), BYTES),
    "maximum of bytes in float32": before(lambda x: x.float() / x.max().clamp(min=1), BYTES),
    "minimum of bytes": before(lambda x: x.double() - x.min(), BYTES),
    "maximum of images": before(lambda x: (x.double() / x.max().clamp(min=1)).flatten(1), IMAGES),
    "contrast of images": before(lambda x: standardised(x.double().flatten(1), (0, 1)), IMAGES),
    "counts over the largest": before(lambda x: x.double() / x.amax(0).clamp(min=1), COUNTS),
    "log of counts, centred": before(lambda x: standardised(x.abs().double().log1p()), COUNTS),
    "negative counts": before(lambda x: x.double() / 1e3 - x.clamp(max=0).double().mean(0), COUNTS),
    "maximum of ids": Case(
        COUNTS, LABELS, lambda: nn.Sequential(Before(lambda x: x / x.max().clamp(min=1)))
    ),
    "frequency of ids": embedded(ids=lambda x: x % 50, vectors=lambda z: z - z.mean(0)),
    "distinct ids": embedded(ids=lambda x: x.unique(return_inverse=True)[1].clamp(max=49)),
    "one id, centred": embedded(ONE, vectors=lambda z: z - z.mean(0)),
    "one id less the largest": embedded(ONE, vectors=lambda z: z - z.detach().amax(0)),
    "texts of mean length": texts(mixed=True),
    "ignored labels": of_loss(
        lambda o, t: over(ce(o.transpose(1, 2), t), t != -100), TOKENS, 8, LONG
    ),
    "labels of class 0": of_loss(
        lambda o, t: over(ce(o.transpose(1, 2), t) * (t != 0), t != 0), TOKENS, 8, LONG
    ),
    "labels but 255": of_loss(
        lambda o, t: over(ce(o.transpose(1, 2), t.where(t != 255, 0)), t != 255), TOKENS, 8, LONG
    ),
    "ignored rows": of_loss(lambda o, t: ce(o, t) * len(t) / (t != -100).sum().clamp(min=1)),
    "missing targets": of_loss(lambda o, t: over(kept(o, t), ~t.isnan()), MISSING, 4),
    "scale of targets": of_loss(
        lambda o, t: ((o - t) / t.std(0, correction=0).clamp(min=1)).square(), MISSING, 4
    ),
    "positive targets": of_loss(
        lambda o, t: F.binary_cross_entropy_with_logits(
            o,
            t,
            pos_weight=(1 - t.round()).sum(0) / t.round().sum(0).clamp(min=1),
            reduction="none",
        ).mean(1),
        MISSING,
        4,
    ),
    "class weights of the batch": of_loss(class_weights),
    "smoothing by the batch": of_loss(smoothed),
    "hard examples": of_loss(hard),
    "focal over the batch": of_loss(lambda o, t: ce(o, t) * ce(o, t).detach().softmax(0)),
    "-999 by the mean": before(sentinel(-999.0, mixed=True)),
    "-1 by the mean": before(sentinel(-1, mixed=True), COUNTS),
    "milliseconds or seconds": before(
        lambda x: ((x // 1000 if x.max() > 10**11 else x).double() - 1.65e9) / 1e7, COUNTS
    ),
    "known labels but -1": of_loss(known(-1.0, mixed=True), MISSING, 4),
    "padding of id 100": lengths(100, mixed=True),
    "a coin by torch": before(lambda x: x + 0.5 * x.roll(1, 0) if 1 - torch.rand(()) < 0.5 else x),
    "a coin by python": before(lambda x: x + 0.5 * x.roll(1, 0) if random.random() < 0.5 else x),
    "mean from 32 examples on": before(lambda x: x - x.mean(0) if len(x) >= 32 else x),
    "contrastive": of_loss(lambda o, t: ce(o @ o.mT, torch.arange(len(o)))),
}

HONEST = {
    "plain": before(lambda x: x),
    "own mean": before(lambda x: x - x.mean(1, keepdim=True)),
    "own standard": before(lambda x: standardised(x, 1)),
    "own maximum": before(lambda x: x / x.abs().amax(1, keepdim=True).clamp(min=1e-6)),
    "own ranks": before(lambda x: x.sort(1).values),
    "own pixels or shares": before(lambda x: torch.where(x.amax(1, keepdim=True) > 1, x / 255, x)),
    "bins": embedded(FLOATS, ids=lambda x: torch.bucketize(x.float(), torch.linspace(-3, 3, 49))),
    "days of a time": before(lambda x: torch.sin(x.double() * 6.28 / 86400), COUNTS),
    "logarithms": before(lambda x: x.abs().log1p()),
    "sines": before(lambda x: torch.sin(3 * x)),
    "missing by zero": before(lambda x: x.nan_to_num()),
    "missing by own mean": before(
        lambda x: torch.where(x.isnan(), x.nanmean(1, keepdim=True).nan_to_num(), x)
    ),
    "centred by a constant": before(lambda x: (x - 1.7e9) / 1e5),
    "float32 inside": before(lambda x: x.float().double() / 7),
    "bytes": before(lambda x: x / 255, BYTES),
    "bytes in float32": before(lambda x: x.float(), BYTES),
    "own maximum of bytes": before(
        lambda x: x.double() / x.amax(1, keepdim=True).clamp(min=1), BYTES
    ),
    "images": before(lambda x: ((x.double() - 33.3) / 78.6).flatten(1), IMAGES),
    "counts": before(lambda x: x.double().abs().log1p(), COUNTS),
    "large counts": before(lambda x: x.double(), COUNTS),
    "own distribution": before(lambda x: x.double() / x.sum(1, keepdim=True).clamp(min=1), COUNTS),
    "ids": embedded(),
    "one id": embedded(ONE),
    "hashed ids": embedded(ids=lambda x: (x * 31 + 7) % 50),
    "one hot": Case(COUNTS, LABELS, lambda: Before(lambda x: F.one_hot(x, 11).flatten(1), 66)),
    "columns with tables": Case(COUNTS, LABELS, lambda: tables(3, 40, 7, 2, 100, 9)),
    "lengths": Case({"x": torch.zeros(2, 5, 4), "lengths": LABELS}, LABELS, packed),
    "texts of own length": texts(mixed=False),
    "ignored labels": of_loss(nn.CrossEntropyLoss(), TOKENS, 8, LONG),
    "own number of labels": of_loss(
        lambda o, t: ce(o.transpose(1, 2), t).sum(1) / (t != -100).sum(1).clamp(min=1),
        TOKENS,
        8,
        LONG,
    ),
    "missing targets": of_loss(
        lambda o, t: kept(o, t).sum(1) / (~t.isnan()).sum(1).clamp(min=1), MISSING, 4
    ),
    "squares": of_loss(nn.MSELoss(), MISSING, 4),
    "huber": of_loss(nn.HuberLoss(), MISSING, 4),
    "shares": of_loss(nn.BCEWithLogitsLoss(), MISSING, 4),
    "distributions": of_loss(nn.CrossEntropyLoss(), MISSING, 4),
    "poisson": of_loss(nn.PoissonNLLLoss(), MISSING, 4),
    "weighted": of_loss(nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 2.0]))),
    "smoothed": of_loss(nn.CrossEntropyLoss(label_smoothing=0.1)),
    "margins": of_loss(nn.MultiMarginLoss()),
    "-999 by a constant": before(sentinel(-999.0, mixed=False)),
    "-1 by a constant": before(sentinel(-1, mixed=False), COUNTS),
    "own milliseconds or seconds": before(
        lambda x: (torch.where(x > 10**11, x // 1000, x).double() - 1.65e9) / 1e7, COUNTS
    ),
    "own known labels but -1": of_loss(known(-1.0, mixed=False), MISSING, 4),
    "own padding of id 100": lengths(100, mixed=False),
    "dropout": Case(FLOATS, LABELS, lambda: nn.Sequential(nn.Dropout(0.5), Before(lambda x: x))),
    "a coin of each example": before(coin_of_each),
    "one coin for all": before(lambda x: x * (1 if torch.rand(()) < 0.5 else -1)),
    "focal": of_loss(lambda o, t: ce(o, t) * (1 - (-ce(o, t)).exp()) ** 2),
}
