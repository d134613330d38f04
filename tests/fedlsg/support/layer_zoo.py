"""Small models with the layers that are called, or whose parameters are used: each treats examples
independently.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.fedlsg.support.gradient_oracle import squared_error

WORDS = 9


class Tokens(nn.Module):
    """Words and positions, class token, scale, gate and prompt: parameters of every kind around an
    RMSNorm.
    """

    def __init__(self, length: int = 5, width: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.places = nn.Embedding(length + 2, width)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.prompt = nn.Parameter(torch.randn(2, width))
        self.positions = nn.Parameter(torch.randn(1, length + 5, width))
        self.scale, self.gate = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(()))
        self.mix = nn.Linear(width, width)
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch, length = x.shape
        h = self.words(x) + self.places(torch.arange(length, device=x.device))
        prompt = self.prompt.unsqueeze(0).repeat(batch, 1, 1)
        h = torch.cat((self.token.expand(batch, -1, -1), prompt, h), dim=1)
        h = h + self.positions[:, : h.shape[1]]
        h = self.scale * h + torch.sigmoid(self.gate) * self.mix(h)
        return self.head(self.norm(h).tanh().mean(1))


class Tied(nn.Module):
    """A language model in small: the words' table is the last layer's weight as well."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(WORDS, width), nn.Linear(width, width)
        self.head = nn.Linear(width, WORDS)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.words(x)).tanh()).mean(1)


class Bag(nn.Module):
    """The sum of words, each of which has the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).sum(1))


class Attention(nn.Module):
    """MultiheadAttention in the ways it is called; ``mask``: causal, padding, by example, or
    none.
    """

    def __init__(
        self,
        *,
        first: bool = True,
        weights: bool = False,
        mask: str = "",
        cross: bool = False,
        **of: object,
    ):
        super().__init__()
        self.before = nn.Linear(3, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=first, **of)
        self.first, self.weights, self.mask, self.cross = first, weights, mask, cross

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        length = x.shape[1]
        q = x if self.first else x.transpose(0, 1)
        kv = q.tanh() if self.cross else q
        given: dict[str, Tensor] = {}
        if self.mask == "causal":
            given["attn_mask"] = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(
                1
            )
        elif self.mask == "padding":
            real = x[:, 0, 0].detach().abs().mul(9).long() % length + 1
            given["key_padding_mask"] = torch.arange(length, device=x.device) >= real.unsqueeze(1)
        elif self.mask == "example":
            given["attn_mask"] = (
                x[:, :1, :1].detach().expand(-1, length, length).repeat_interleave(2, 0)
            )
        out, weights = self.attention(q, kv, kv, need_weights=self.weights, **given)
        out = out if self.first else out.transpose(0, 1)
        return (
            out.flatten(1)
            if weights is None
            else torch.cat([out.flatten(1), weights.flatten(1)], 1)
        )


class Recurrent(nn.Module):
    """A recurrent layer of which outputs and last states are used; with a state of its own if
    ``given``.

    ``learned``: how a learned first state becomes one for each of B examples.
    """

    def __init__(
        self,
        kind: type[nn.RNNBase],
        *,
        given: bool = False,
        learned: Callable[[Tensor, int], Tensor] | None = None,
        **of: object,
    ) -> None:
        super().__init__()
        self.before = nn.Linear(3, 4)
        self.layer = kind(4, 5, **of)
        self.given = given
        self.learned = learned
        if learned is not None:
            places = self.layer.num_layers * (1 + self.layer.bidirectional)
            self.start, self.cell = (nn.Parameter(torch.randn(places, 1, 5)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        first = self.layer.batch_first
        state = None
        if self.given:
            h = x[:, 0, :1].expand(-1, 5).unsqueeze(0).contiguous()
            state = (h, h.tanh()) if isinstance(self.layer, nn.LSTM) else h
        if self.learned is not None:
            h = self.learned(self.start, len(x))
            state = (
                (h, self.learned(self.cell.tanh(), len(x)))
                if isinstance(self.layer, nn.LSTM)
                else h
            )
        out, last = self.layer(x if first else x.transpose(0, 1), state)
        out = out if first else out.transpose(0, 1)
        states = last if isinstance(last, tuple) else (last,)
        return torch.cat([out.flatten(1), *(s.transpose(0, 1).flatten(1) for s in states)], 1)


@dataclass(frozen=True)
class Case:
    """A model, and the shape of one example: of numbers, or of words."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    words: bool = False

    def build(
        self, batch: int = 4, dtype: torch.dtype = torch.float64
    ) -> tuple[nn.Module, Tensor, Tensor]:
        """Model, inputs and targets of ``squared_error``; always the same ones."""
        torch.manual_seed(3)
        model = self.make().to(dtype)
        shape = (batch, *self.shape)
        x = torch.randint(WORDS, shape) if self.words else torch.randn(shape, dtype=dtype)
        return model, x, torch.randn(batch, dtype=dtype)


loss = squared_error


ZOO = {
    "parameters, words, positions": Case(Tokens, (5,), words=True),
    "tied": Case(Tied, (5,), words=True),
    "bag of words": Case(Bag, (6,), words=True),
    "two words": Case(
        lambda: nn.Sequential(nn.Embedding(WORDS, 4), nn.Flatten(), nn.Linear(8, 2)),
        (2,),
        words=True,
    ),
    "one category": Case(
        lambda: nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, 2)), (), words=True
    ),
    "Conv1d": Case(
        lambda: nn.Sequential(
            nn.Conv1d(3, 5, 3, stride=2, padding=1, dilation=2), nn.ReLU(True), nn.Conv1d(5, 4, 2)
        ),
        (3, 9),
    ),
    "Conv1d same": Case(
        lambda: nn.Sequential(
            nn.Conv1d(3, 4, 3, padding="same"), nn.InstanceNorm1d(4, affine=True)
        ),
        (3, 6),
    ),
    "Conv3d": Case(
        lambda: nn.Sequential(
            nn.Conv3d(2, 3, 2), nn.ReLU(inplace=True), nn.InstanceNorm3d(3, affine=True)
        ),
        (2, 4, 4, 4),
    ),
    "ConvTranspose2d": Case(
        lambda: nn.Sequential(
            nn.ConvTranspose2d(3, 3, 3, stride=2, groups=3),
            nn.InstanceNorm2d(3, affine=True),
            nn.ReLU(inplace=True),
        ),
        (3, 4, 4),
    ),
    "a layer alone": Case(
        lambda: nn.Conv3d(2, 4, 2, groups=2, padding=1, padding_mode="circular"), (2, 3, 3, 3)
    ),
    "RMSNorm": Case(
        lambda: nn.Sequential(nn.RMSNorm((3, 4), eps=1e-2), nn.Linear(4, 2)), (2, 3, 4)
    ),
    "LSTM": Case(lambda: Recurrent(nn.LSTM, batch_first=True), (6, 3)),
    "LSTM, deep, both ways, time first": Case(
        lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), (4, 3)
    ),
    "LSTM, given states": Case(lambda: Recurrent(nn.LSTM, batch_first=True, given=True), (5, 3)),
    "GRU": Case(lambda: Recurrent(nn.GRU, batch_first=True, given=True, bias=False), (6, 3)),
    "RNN": Case(lambda: Recurrent(nn.RNN, nonlinearity="relu"), (6, 3)),
    "GRU, learned first state": Case(
        lambda: Recurrent(
            nn.GRU, batch_first=True, learned=lambda p, size: p.expand(-1, size, -1).contiguous()
        ),
        (6, 3),
    ),
    "LSTM, learned first states, time first": Case(
        lambda: Recurrent(
            nn.LSTM,
            num_layers=2,
            bidirectional=True,
            learned=lambda p, size: p.repeat(1, size, 1).contiguous(),
        ),
        (4, 3),
    ),
    "RNN, a function of a learned first state": Case(
        lambda: Recurrent(nn.RNN, learned=lambda p, size: (p * 2).expand(len(p), size, 5)), (5, 3)
    ),
    "attention": Case(Attention, (6, 3)),
    "attention, as many tokens as examples": Case(
        lambda: Attention(weights=True, mask="causal"), (4, 3)
    ),
    "attention, time first": Case(lambda: Attention(first=False, mask="padding"), (5, 3)),
    "attention, masks by example": Case(lambda: Attention(mask="example"), (5, 3)),
    "attention, cross": Case(lambda: Attention(cross=True, add_bias_kv=True), (5, 3)),
    "attention, keys of another width": Case(
        lambda: Attention(cross=True, kdim=4, vdim=4, bias=False), (5, 3)
    ),
    "transformer layer": Case(
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (5, 4)
    ),
}
