"""The check of code that a step runs one example at a time: unlikely models pass, what mixes or
remembers does not.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedlsg
from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError
from fedlsg.gradients.independence import check_model
from tests.fedlsg.gradients.calls.test_registry import Bend, bend_gradients, problem
from tests.fedlsg.support.gradient_oracle import cross_entropy, squared_error
from tests.fedlsg.support.mixers import Apply

X, Y = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)), torch.arange(7) % 3
LEVELS = ("isolated", "rows")


class Sign(torch.autograd.Function):
    """The sign, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Binary(nn.Linear):
    """A layer with the signs of its weights."""

    def __init__(self, sign: Callable[[Tensor], Tensor]) -> None:
        super().__init__(4, 5)
        self.sign = sign

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.sign(self.weight), self.bias)


def heads(m: Any, x: Tensor, domain: Tensor) -> Tensor:
    """Each row by the head of its domain."""
    out = x.new_zeros(len(x), 3)
    for k, head in enumerate(m.heads):
        out[domain == k] = head(x[domain == k])
    return out


def penalised(m: Any, x: Tensor) -> Tensor:
    """The outputs, and the norm of their derivatives by the inputs."""
    middle = x.detach().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(m.net(middle).sum(), middle, create_graph=True)
    return torch.cat([m.net(x), (slope.norm(dim=1, keepdim=True) - 1).square()], 1)


def packed(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    """The last state after as many steps as a row has."""
    steps = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return m.head(m.rnn(steps)[1][0][0])


def words(m: Any, ids: Tensor) -> Tensor:
    """Letters of words by one convolution, with the words of all rows on its first dimension."""
    h = m.conv(m.table(ids).flatten(0, 1).transpose(1, 2)).amax(2)
    return m.head(h.view(*ids.shape[:2], -1).mean(1))


def of_tasks(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """A loss with a learned weight."""
    values, weights = outputs
    return cross_entropy(values, targets) * torch.exp(-weights[:, 0]) + weights.sum(1)


def one_shape(m: Any, x: Tensor) -> Tensor:
    """Code that takes one row only."""
    if len(x) > 1:
        raise RuntimeError("one at a time")
    return m.head(x)


def tasks() -> nn.Module:
    model = Apply(lambda m, x: (m.head(x), m.weight.expand(len(x), -1)), head=nn.Linear(4, 3))
    model.weight = nn.Parameter(torch.tensor([0.2, -0.1]))
    return model


HONEST: dict[str, tuple[Callable[[], nn.Module], Any, Any]] = {
    "signs by detach": (
        lambda: nn.Sequential(
            Binary(lambda w: w + (w.sign() - w).detach()), nn.Tanh(), nn.Linear(5, 3)
        ),
        X,
        cross_entropy,
    ),
    "signs by a function": (
        lambda: nn.Sequential(Binary(Sign.apply), nn.Tanh(), nn.Linear(5, 3)),
        X,
        cross_entropy,
    ),
    "compiled": (
        lambda: torch.compile(nn.Sequential(nn.Linear(4, 3)), backend="eager"),
        X,
        cross_entropy,
    ),
    "compiled inside": (
        lambda: nn.Sequential(torch.compile(nn.Linear(4, 4), backend="eager"), nn.Linear(4, 3)),
        X,
        cross_entropy,
    ),
    "heads": (
        lambda: Apply(heads, heads=nn.ModuleList(nn.Linear(4, 3) for _ in range(2))),
        {"x": X, "domain": torch.arange(7) % 2},
        cross_entropy,
    ),
    "gradient penalty": (
        lambda: Apply(
            penalised, net=nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1))
        ),
        X,
        lambda o, y: o[:, 1] - o[:, 0],
    ),
    "packed": (
        lambda: Apply(packed, rnn=nn.LSTM(4, 6, batch_first=True), head=nn.Linear(6, 3)),
        {"x": torch.randn(7, 5, 4), "lengths": torch.tensor([5, 1, 3, 2, 5, 4, 1])},
        cross_entropy,
    ),
    "words": (
        lambda: Apply(
            words,
            table=nn.Embedding(20, 6),
            conv=nn.Conv1d(6, 8, 3, padding=1),
            head=nn.Linear(8, 3),
        ),
        torch.randint(20, (7, 4, 6)),
        cross_entropy,
    ),
    "expanded parameter": (tasks, X, of_tasks),
    "one row only": (lambda: Apply(one_shape, head=nn.Linear(4, 3)), X, cross_entropy),
}


@pytest.mark.thinned(8)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", HONEST)
def test_an_unlikely_model_passes(case, level):
    torch.manual_seed(1)
    make, inputs, loss = HONEST[case]
    assert check_model(make(), loss, [(inputs, Y)], level=level)[0] == 0


KEPT: list[Tensor] = []


def later(m: Any, h: Tensor) -> Tensor:
    """Less the mean from the 60th call on."""
    m.calls = getattr(m, "calls", 0) + 1
    return h - h.mean(0) if m.calls > 60 else h


def in_a_global(m: Any, h: Tensor) -> Tensor:
    """Less the mean of the call before."""
    KEPT.append(h.detach().mean())
    return h - KEPT[-2] if len(KEPT) > 1 else h


REMEMBERS = {
    "from the 60th call on": later,
    "a global": in_a_global,
    "batches over 40": lambda m, h: h - h.mean(0) if len(h) > 40 else h,
    "batches over 200": lambda m, h: h - h.mean(0) if len(h) > 200 else h,
}


@pytest.mark.thinned(9)
@pytest.mark.parametrize("level", ["checked", *LEVELS])
@pytest.mark.parametrize("case", REMEMBERS)
def test_what_mixes_later_or_in_large_batches_is_refused(case, level):
    model = Apply(
        lambda m, x: m.last(torch.tanh(REMEMBERS[case](m, m.first(x)))),
        first=nn.Linear(4, 8),
        last=nn.Linear(8, 3),
    )
    with pytest.raises(UnsupportedLayerError, match=r"mixes examples|depends on earlier batches"):
        check_model(model, cross_entropy, [(X, Y)], level=level)


@pytest.mark.parametrize("level", LEVELS)
def test_batch_norm_is_refused_by_its_type(level):
    with pytest.raises(
        UnsupportedLayerError, match=r"^1 \(BatchNorm1d\): mixes the examples.*GroupNorm"
    ):
        check_model(
            nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), cross_entropy, [(X, Y)], level=level
        )


def test_rows_that_run_are_counted_over_all_families():
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if int(targets.max()) > 2:
            raise ValueError("classes 0 to 2")
        return cross_entropy(outputs, targets)

    other = torch.tensor([0, 3, 1])
    assert check_model(nn.Linear(4, 3), loss, [(X, Y), (X[:3] + 1, other)]) == [*range(7), 7, 9]


def test_a_registered_function_with_other_gradients_is_refused():
    """The reference is torch.autograd: a function that agrees with itself alone and in company may
    still be wrong.
    """
    fedlsg.register_layer(
        Bend, lambda *given: {k: 1.1 * g for k, g in bend_gradients(*given).items()}
    )
    model, x, y = problem()
    with pytest.raises(
        UnsupportedLayerError, match=r"^layer.*than torch.autograd: correct the function"
    ):
        check_model(model, squared_error, [(x, y)])
