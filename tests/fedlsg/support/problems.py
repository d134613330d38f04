"""Small models with a loss and a batch: every supported layer, in-place activations, attention."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedlsg.gradients.formulas.standardized import StandardizedConv2d
from tests.fedlsg.support.gradient_oracle import cross_entropy

Problem = tuple[nn.Module, Callable[[Tensor, Tensor], Tensor], Tensor | dict[str, Tensor], Tensor]


class Encoder(nn.Module):
    """One pre-norm attention block on frozen word and position embeddings: a transformer in
    small.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(11, width).requires_grad_(False)
        self.places = nn.Embedding(6, width).requires_grad_(False)
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mix, self.head = nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, *, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        y = self.norm(x)
        scores = (self.query(y) @ self.key(y).mT).masked_fill(~mask.unsqueeze(1), -1e9)
        return self.head(torch.tanh(self.mix(x + scores.softmax(-1) @ self.value(input=y))).mean(1))


def mlp() -> Problem:
    model = nn.Sequential(
        nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 7, bias=False), nn.LayerNorm(7), nn.Linear(7, 3)
    )
    return model, cross_entropy, torch.randn(5, 9), torch.randint(3, (5,))


def cnn() -> Problem:
    """In-place activations, a frozen layer in between, batch norm in eval mode."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding="same"),
        nn.GroupNorm(2, 6),
        nn.ReLU(inplace=True),
        nn.BatchNorm2d(6).eval().requires_grad_(False),
        nn.Conv2d(6, 6, 1).requires_grad_(False),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.SiLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10),
        nn.LeakyReLU(inplace=True),
        nn.Linear(10, 3),
    )
    return model, cross_entropy, torch.randn(4, 3, 9, 8), torch.randint(3, (4,))


def transformer() -> Problem:
    inputs = {
        "tokens": torch.randint(11, (4, 6)),
        "mask": torch.arange(6) < torch.tensor([[6], [3], [1], [4]]),
    }
    return Encoder(), cross_entropy, inputs, torch.randint(3, (4,))


def standardised() -> Problem:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        StandardizedConv2d(6, 5, 3, stride=2),
        nn.GroupNorm(1, 5),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(45, 3),
    )
    return model, cross_entropy, torch.randn(4, 3, 8, 8), torch.randint(3, (4,))


def wide() -> Problem:
    """A convolution and a linear layer whose gradients are worth keeping as factors, and small ones
    that are not.
    """
    model = nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1),
        nn.GroupNorm(4, 48),
        nn.Tanh(),
        nn.Conv2d(48, 64, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64 * 16, 32),
        nn.Tanh(),
        nn.Linear(32, 3),
    )
    return model, cross_entropy, torch.randn(5, 3, 4, 4), torch.randint(3, (5,))


def make(problem: Callable[[], Problem], dtype: torch.dtype = torch.float64) -> Problem:
    """The problem at ``dtype``, always the same one."""
    torch.manual_seed(3)
    model, loss_fn, inputs, targets = problem()
    floats = inputs.to(dtype) if isinstance(inputs, Tensor) else inputs
    return model.to(dtype), loss_fn, floats, targets
