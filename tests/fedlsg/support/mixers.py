"""Models of a user's own: some mix the examples of a batch, others look like it and do not."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg.gradients.formulas.standardized import StandardizedConv2d

WIDTH, TOKENS, CLASSES = 8, 7, 3


class Apply(nn.Module):
    """A module that does what it is given: ``do(x)``."""

    def __init__(self, do: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.do = do

    def forward(self, x: Tensor) -> Tensor:
        return self.do(x)


class MeanMixer(nn.Module):
    """Adds the mean over the batch, times a strength, where ``when`` says so."""

    def __init__(
        self, strength: float = 1.0, when: Callable[[nn.Module, Tensor], bool] = lambda module, x: True
    ) -> None:
        super().__init__()
        self.strength, self.when = strength, when

    def forward(self, x: Tensor) -> Tensor:
        return x + self.strength * x.mean(0, keepdim=True) if self.when(self, x) else x


class _MixedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        return g - g.mean(0, keepdim=True)


class BackwardMixer(nn.Module):
    """The identity, whose backward pass takes the mean over the batch off."""

    def forward(self, x: Tensor) -> Tensor:
        return _MixedGradient.apply(x)


class Memory(nn.Module):
    """Takes off what it remembers of earlier batches."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x - self.seen
        with torch.no_grad():
            self.seen.lerp_(x.mean((0, 1)), 0.01)
        return y


class UnusedMemory(Memory):
    """Remembers, and would use it after a hundred calls only."""

    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        return x


class Counter(nn.Module):
    """Counts, as integers that nothing reads, how many numbers of its inputs are positive."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(WIDTH, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.count += (x > 0).sum((0, 1))
        return x


class FrozenTable(nn.Module):
    """Adds rows of a frozen table, which shortens those that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(10 * torch.ones(50, WIDTH), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.embedding((10 * x[:, :, 0].detach().tanh()).long().abs(), self.table, max_norm=1.0)


class HiddenMemory(nn.Module):
    """Remembers in an attribute, which no buffer shows, from batches of several examples."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = x - self.seen
        if len(x) > 1:
            self.seen = x.detach().mean(0)
        return y


class Attention(nn.Module):
    """Frozen attention on (B, T, d), first as its authors meant it; ``batch_first=False`` attends over the batch."""

    def __init__(self, batch_first: bool, turned: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first, dropout=0.1).requires_grad_(False)
        self.turned = turned

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(0, 1) if self.turned else x
        y = self.attention(y, y, y)[0]
        return x + (y.transpose(0, 1) if self.turned else y)


class Recurrent(nn.Module):
    """A frozen GRU on (B, T, d), its last layer's outputs."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=batch_first).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


class Residual(nn.Module):
    """x + branch(x)."""

    def __init__(self, *branch: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class OwnAttention(nn.Module):
    """Attention of Linear layers; with ``mixed`` the softmax runs over the batch."""

    def __init__(self, mixed: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.weights = nn.Softmax(dim=0 if mixed else -1)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT / WIDTH**0.5
        return x + self.weights(scores) @ self.value(x)


class FunctionalBatchNorm(nn.Module):
    """Batch norm inside a forward, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = F.batch_norm(self.first(x).flatten(0, 1), None, None, training=True).view_as(x)
        return self.second(y)


class GatedBranch(nn.Module):
    """A branch that mixes behind a weight that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.mixer = nn.Linear(WIDTH, WIDTH), Apply(lambda x: x - x.mean(0))
        self.hidden, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        for layer in (self.hidden, self.gate):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate(self.hidden(self.mixer(self.branch(x))))


class StochasticDepth(nn.Module):
    """Drops its branch for some examples, by a draw of its own for each."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.rand(len(x), 1, 1, device=x.device) < 0.5
        return x + self.branch(x) * kept + 0.1 * torch.randn_like(x)


def tokens_model(*middle: nn.Module) -> nn.Sequential:
    """(B, T, d) -> linear, ``middle``, linear, mean over tokens -> classes."""
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Tanh(), *middle, nn.Linear(WIDTH, WIDTH), Apply(lambda x: x.mean(1)),
        nn.Linear(WIDTH, CLASSES),
    )  # fmt: skip


class Words(nn.Module):
    """Frozen embedding, padding mask, attention of torch's own function, dropout: an honest text model."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, WIDTH, padding_idx=0).requires_grad_(False)
        self.query, self.key, self.value, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.drop = nn.Dropout(0.3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x, real = self.drop(self.words(input_ids)), attention_mask.bool()
        y = F.scaled_dot_product_attention(
            self.query(x), self.key(x), self.value(x), attn_mask=real.unsqueeze(1), dropout_p=0.2
        )
        y = self.head(x + y) * real.unsqueeze(-1)
        return y.sum(1) / real.sum(1, keepdim=True)


class ChannelsLast(nn.Module):
    """Convolutions on NHWC images, norms with weights of their own, a kernel that is standardised."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.second = StandardizedConv2d(8, 8, 3, stride=2)
        self.last, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(self.norm(self.first(x.permute(0, 3, 1, 2)))), 2)
        return self.head(self.last(self.second(y).permute(0, 2, 3, 1)).mean((1, 2)))


class Trimmed(nn.Module):
    """Cuts a batch of texts to its longest and packs it for a frozen GRU: shapes depend on the company only."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, WIDTH).requires_grad_(False)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True).requires_grad_(False)
        self.middle, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        lengths = attention_mask.sum(1)
        longest = int(lengths.max())
        real = attention_mask[:, :longest].unsqueeze(-1)
        x = self.words(input_ids[:, :longest])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        last = self.gru(packed)[1][0]
        return self.head((torch.tanh(self.middle(x)) * real).sum(1) / lengths.unsqueeze(1) + last)


class Cached(nn.Module):
    """Keeps a table of positions in a buffer that the first call fills."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if len(self.table) < x.shape[1]:
            self.table = torch.arange(x.shape[1], dtype=x.dtype, device=x.device).sin()
        return x + self.table.unsqueeze(1)


class Experts(nn.Module):
    """Two frozen experts; each sees the tokens that choose it, from all examples in one pile, if there are any."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH).requires_grad_(False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        chosen = (x.sum(-1) > 1).long()
        for number, expert in enumerate(self.experts):
            if (chosen == number).any():
                y[chosen == number] = expert(x[chosen == number])
        return x + y


class Table(nn.Module):
    """A row of categories and numbers: a wrong category is an error, as is a number above 2."""

    def __init__(self) -> None:
        super().__init__()
        self.categories = nn.Embedding(4, WIDTH).requires_grad_(False)
        self.numbers, self.head = nn.Linear(2, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if x[:, 1:].max() > 2:
            raise ValueError("expected numbers up to 2")
        return self.head(torch.tanh(self.categories(x[:, 0].long()) + self.numbers(x[:, 1:])))
