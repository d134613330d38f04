"""Models of a user's own: some mix the examples of a batch, others look like it and do not."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg.gradients.formulas.standardized import StandardizedConv2d

WIDTH, TOKENS, CLASSES = 8, 7, 3


class Apply(nn.Module):
    """A module that does what it is given, ``do(x)``, or with layers of its own ``do(module,
    x)``.
    """

    def __init__(self, do: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.do, self.alone = do, not layers
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        return self.do(*(() if self.alone else (self,)), *inputs, **named)


class MeanMixer(nn.Module):
    """Adds the mean over the batch, times a strength, where ``when`` says so."""

    def __init__(
        self,
        strength: float = 1.0,
        when: Callable[[nn.Module, Tensor], bool] = lambda module, x: True,
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
        return x + nn.functional.embedding(
            (10 * x[:, :, 0].detach().tanh()).long().abs(), self.table, max_norm=1.0
        )


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


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


def linears(*names: str) -> dict[str, nn.Module]:
    return {name: nn.Linear(WIDTH, WIDTH) for name in names}


def attention(batch_first: bool, turned: bool = False) -> nn.Module:
    """Frozen attention on (B, T, d), first as its authors meant it; ``batch_first=False`` attends
    over the batch.
    """

    def attend(m: Any, x: Tensor) -> Tensor:
        y = x.transpose(0, 1) if turned else x
        y = m.attention(y, y, y)[0]
        return x + (y.transpose(0, 1) if turned else y)

    return Apply(
        attend,
        attention=frozen(nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first, dropout=0.1)),
    )


def recurrent(batch_first: bool) -> nn.Module:
    """A frozen GRU on (B, T, d), its last layer's outputs."""
    return Apply(
        lambda m, x: m.gru(x)[0], gru=frozen(nn.GRU(WIDTH, WIDTH, batch_first=batch_first))
    )


def residual(*branch: nn.Module) -> nn.Module:
    """x + branch(x)."""
    return Apply(lambda m, x: x + m.branch(x), branch=nn.Sequential(*branch))


def own_attention(mixed: bool) -> nn.Module:
    """Attention of Linear layers; with ``mixed`` the softmax runs over the batch."""

    def attend(m: Any, x: Tensor) -> Tensor:
        return x + m.weights(m.query(x) @ m.key(x).mT / WIDTH**0.5) @ m.value(x)

    return Apply(
        attend, weights=nn.Softmax(dim=0 if mixed else -1), **linears("query", "key", "value")
    )


def functional_batch_norm() -> nn.Module:
    """Batch norm inside a forward, between two layers."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.second(
            F.batch_norm(m.first(x).flatten(0, 1), None, None, training=True).view_as(x)
        )

    return Apply(forward, **linears("first", "second"))


def gated_branch() -> nn.Module:
    """A branch that mixes behind a weight that starts at zero."""
    layers = {"mixer": Apply(lambda x: x - x.mean(0)), **linears("branch", "hidden", "gate")}
    for name in ("hidden", "gate"):
        for p in layers[name].parameters():
            nn.init.zeros_(p)
    return Apply(lambda m, x: x + m.gate(m.hidden(m.mixer(m.branch(x)))), **layers)


def stochastic_depth() -> nn.Module:
    """Drops its branch for some examples, by a draw of its own for each."""

    def forward(m: Any, x: Tensor) -> Tensor:
        kept = torch.rand(len(x), 1, 1, device=x.device) < 0.5
        return x + m.branch(x) * kept + 0.1 * torch.randn_like(x)

    return Apply(forward, **linears("branch"))


def tokens_model(*middle: nn.Module) -> nn.Sequential:
    """(B, T, d) -> linear, ``middle``, linear, mean over tokens -> classes."""
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.Tanh(),
        *middle,
        nn.Linear(WIDTH, WIDTH),
        Apply(lambda x: x.mean(1)),
        nn.Linear(WIDTH, CLASSES),
    )


def words_model() -> nn.Module:
    """Frozen embedding, padding mask, attention of torch's own function, dropout: an honest text
    model.
    """

    def forward(m: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x, real = m.drop(m.words(input_ids)), attention_mask.bool()
        mask = real.unsqueeze(1)
        y = F.scaled_dot_product_attention(
            m.query(x), m.key(x), m.value(x), attn_mask=mask, dropout_p=0.2
        )
        return (m.head(x + y) * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True)

    words = frozen(nn.Embedding(11, WIDTH, padding_idx=0))
    return Apply(
        forward, words=words, drop=nn.Dropout(0.3), **linears("query", "key", "value", "head")
    )


def channels_last() -> nn.Module:
    """Convolutions on NHWC images, norms with weights of their own, a kernel that is
    standardised.
    """

    def forward(m: Any, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(m.norm(m.first(x.permute(0, 3, 1, 2)))), 2)
        return m.head(m.last(m.second(y).permute(0, 2, 3, 1)).mean((1, 2)))

    return Apply(
        forward,
        first=nn.Conv2d(3, 8, 3, padding=1),
        norm=nn.GroupNorm(2, 8),
        last=nn.LayerNorm(8),
        second=StandardizedConv2d(8, 8, 3, stride=2),
        head=nn.Linear(8, CLASSES),
    )


def trimmed() -> nn.Module:
    """Cuts a batch of texts to its longest and packs it for a frozen GRU: shapes depend on the
    company only.
    """

    def forward(m: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        lengths = attention_mask.sum(1)
        longest = int(lengths.max())
        real = attention_mask[:, :longest].unsqueeze(-1)
        x = m.words(input_ids[:, :longest])
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return m.head(
            (torch.tanh(m.middle(x)) * real).sum(1) / lengths.unsqueeze(1) + m.gru(packed)[1][0]
        )

    words, gru = frozen(nn.Embedding(11, WIDTH)), frozen(nn.GRU(WIDTH, WIDTH, batch_first=True))
    return Apply(forward, words=words, gru=gru, **linears("middle", "head"))


class Cached(nn.Module):
    """Keeps a table of positions in a buffer that the first call fills."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if len(self.table) < x.shape[1]:
            self.table = torch.arange(x.shape[1], dtype=x.dtype, device=x.device).sin()
        return x + self.table.unsqueeze(1)


def experts() -> nn.Module:
    """Two frozen experts; each sees the tokens that choose it, from all examples in one pile, if
    there are any.
    """

    def forward(m: Any, x: Tensor) -> Tensor:
        y, chosen = torch.zeros_like(x), (x.sum(-1) > 1).long()
        for number, expert in enumerate(m.experts):
            if (chosen == number).any():
                y[chosen == number] = expert(x[chosen == number])
        return x + y

    return Apply(forward, experts=nn.ModuleList(frozen(nn.Linear(WIDTH, WIDTH)) for _ in range(2)))


def table() -> nn.Module:
    """A row of categories and numbers: a wrong category is an error, as is a number above 2."""

    def forward(m: Any, x: Tensor) -> Tensor:
        if x[:, 1:].max() > 2:
            raise ValueError("expected numbers up to 2")
        return m.head(torch.tanh(m.categories(x[:, 0].long()) + m.numbers(x[:, 1:])))

    categories = frozen(nn.Embedding(4, WIDTH))
    return Apply(
        forward, categories=categories, numbers=nn.Linear(2, WIDTH), head=nn.Linear(WIDTH, CLASSES)
    )
