"""Parameters without a layer: right in every use that is known, refused by name in any other."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg.gradients.calls.survey import Survey
from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError, trainable
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.gradients.per_example import survey_of
from tests.fedlsg.support.gradient_oracle import TOLERANCE, make_frame, naive_error, squared_error

BATCH = 4


class Model(nn.Module):
    """Two parameters p (4,) and P (1, 3, 4), a matrix W, a buffer, and a layer, under a forward
    pass of a test.
    """

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.p, self.P, self.W = (
            nn.Parameter(torch.randn(shape)) for shape in ((4,), (1, 3, 4), (4, 4))
        )
        self.layer = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.route = forward
        self.register_buffer("ones", torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.route(self, x)


def made(
    forward: Callable[[nn.Module, Tensor], Tensor], batch: int = BATCH
) -> tuple[nn.Module, Tensor, Tensor]:
    model = Model(forward).double()
    return (
        model,
        torch.randn(batch, 3, 4, dtype=torch.float64),
        torch.randn(batch, dtype=torch.float64),
    )


SOUND = {
    "sum": lambda m, x: x + m.p,
    "parameter first": lambda m, x: m.p - x,
    "scale and shift": lambda m, x: m.layer(x * m.p + m.P),
    "after a layer": lambda m, x: m.layer(x).mul_(m.p).add_(m.P),
    "division": lambda m, x: x / (1 + m.p.exp()),
    "a function of it": lambda m, x: (
        x * F.softplus(m.p)[:1] + m.P.mean(1, keepdim=True).transpose(1, 2)[:, :3]
    ),
    "with a buffer": lambda m, x: x * (m.p * m.ones),
    "through a frozen layer": lambda m, x: x + m.frozen(m.P),
    "two of them": lambda m, x: x * (m.p * m.P),
    "twice": lambda m, x: (x + m.p).tanh() * m.p,
    "joined alone": lambda m, x: torch.cat((torch.cat([m.P, m.P], 1).expand(len(x), -1, -1), x), 1),
    "expanded and joined": lambda m, x: torch.cat((m.P.expand(len(x), -1, -1), x), dim=1),
    "expand_as": lambda m, x: torch.cat((m.P.expand_as(x), x), 2),
    "expand_as of the batch": lambda m, x: (
        m.layer(x[:, :1]).expand_as(m.P.expand(len(x), -1, -1)) + m.p
    ),
    "of its shape": lambda m, x: m.layer(x).view_as(m.P.expand(len(x), -1, -1)),
    "repeated": lambda m, x: torch.cat((m.p.repeat(len(x), 1, 1), x), 1),
    "expanded before a layer": lambda m, x: m.layer(m.P.expand(len(x), -1, -1)) + x,
    "copied": lambda m, x: torch.cat((m.P.expand(len(x), -1, -1).clone(), x), 1),
    "linear": lambda m, x: F.linear(x, m.W, m.p),
    "linear of a function": lambda m, x: F.linear(x, m.W.tanh(), m.p),
    "product": lambda m, x: x @ m.W,
    "matmul after a layer": lambda m, x: torch.matmul(m.layer(x).relu_(), m.W),
    "bias alone": lambda m, x: F.linear(x, m.frozen.weight, m.p),
    "layer norm": lambda m, x: F.layer_norm(x, (4,), m.p, m.p.tanh()),
    "into a layer without a batch": lambda m, x: x + m.layer(m.P).tanh() * m.layer(x),
    "a weight read next to its layer": lambda m, x: F.linear(
        m.layer(x).tanh(), m.layer.weight, m.p
    ),
    "rows by index": lambda m, x: x + m.P[0][(x[:, :, 0] > 0).long()],
    "a mask of attention": lambda m, x: F.scaled_dot_product_attention(
        x.unsqueeze(1),
        m.layer(x).unsqueeze(1),
        x.unsqueeze(1),
        attn_mask=m.W[:3, :3].expand(1, 1, 3, 3),
    )[:, 0],
    "positions of several examples in one dimension": lambda m, x: (
        m.layer(x.flatten(0, 1)).unsqueeze(1) + m.P[:, :1]
    ).view(len(x), 3, 4),
    "positions first": lambda m, x: m.layer(x.transpose(0, 1)).transpose(0, 1) * m.p,
    "tiles": lambda m, x: torch.bmm(
        m.layer(x.flatten(0, 1)).unsqueeze(1), m.P[0].unsqueeze(2).repeat(len(x), 1, 1)
    ).view(len(x), 3),
    "times the weight of a layer": lambda m, x: m.layer(x) @ (m.p * m.layer.weight),
    "where": lambda m, x: torch.where(x > 0, x, m.p),
    "not used": lambda m, x: m.layer(x),
    "detached": lambda m, x: m.layer(x) + m.p.detach(),
    "a penalty in every output": lambda m, x: m.layer(x) + m.p.square().sum(),
    "its shape": lambda m, x: m.layer(x).view(len(x), 3, *m.p.shape) + m.p.to(x.device),
}


@pytest.mark.thinned(82)
@pytest.mark.parametrize("batch", [1, 3, BATCH])
@pytest.mark.parametrize("case", SOUND)
def test_known_uses_have_the_gradients_of_autograd(case, batch):
    """Also for as many examples as there are tokens, or numbers in a parameter."""
    model, x, y = made(SOUND[case], batch)
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    assert naive_error(model, squared_error, x, y, frame) < TOLERANCE


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p):
        return x + 2 * p

    @staticmethod
    def backward(ctx, g):
        return g, 2 * g.sum((0, 1))


def overwritten(m, x):
    h = x * 1
    y = F.linear(h, m.W)
    h.zero_()
    return y


def hidden(m: nn.Module, x: Tensor) -> Tensor:
    return Twice.apply(x, m.p)


UNSOUND = {
    "an unknown operation": (
        lambda m, x: F.rms_norm(x, (4,), m.p),
        r"^p: used by rms_norm.*register_layer",
    ),
    "a convolution": (lambda m, x: F.conv1d(x, m.W[:3, :3].unsqueeze(2)), "^W: used by conv1d"),
    "positions first": (
        lambda m, x: (x.transpose(0, 1) + m.p).transpose(0, 1),
        r"add .*batch of 4, of shape \(3, 4, 4\)",
    ),
    "rows for places": (
        lambda m, x: x + m.W.unsqueeze(1),
        r"^W: has a row for each place in the batch.*expand",
    ),
    "dropout of copies": (
        lambda m, x: torch.cat((F.dropout(m.P.expand(len(x), -1, -1)), x), 1),
        "row for each place in the batch",
    ),
    "joined along the batch": (
        lambda m, x: torch.cat((m.P, x))[1:],
        "used by cat, not along another dimension",
    ),
    "a product on the other side": (
        lambda m, x: m.W @ x.mT,
        "^W: used by a matrix product other than",
    ),
    "rows by two indices": (
        lambda m, x: x + m.P[0, (x[:, :, 0] > 0).long()],
        "^P: used by __getitem__",
    ),
    "an input that is overwritten after the product": (
        overwritten,
        "^W: its input was changed in place",
    ),
    "a function that nobody sees": (hidden, "^p: used outside of its own layer"),
    "in place": (lambda m, x: m.P.expand(len(x), -1, -1).add_(x), "^P: changed in place by add_"),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_other_uses_are_refused_by_name(case):
    forward, message = UNSOUND[case]
    model, x, y = made(forward)
    own = dict(model.named_parameters())
    with pytest.raises(UnsupportedLayerError, match=message):
        per_example_gradients(
            model, squared_error, x, y, make_frame(model, rank=1, sparsity=0.0, carry=False)
        )
    assert all(p is own[name] and type(p) is nn.Parameter for name, p in model.named_parameters())


class Positions(nn.Module):
    """Positions without a batch dimension, and row numbers that are computed from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.signs, self.head = nn.Embedding(9, 4), nn.Embedding(2, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        signs = (x[..., 0] > 0).long()
        return self.head((x + self.places(torch.arange(x.shape[1])) + self.signs(signs)).tanh())


@pytest.mark.parametrize("batch", [1, 2, 5, 7])
def test_positions_are_no_examples_though_there_are_as_many(batch):
    torch.manual_seed(0)
    model = Positions().double()
    x, y = torch.randn(batch, 5, 4, dtype=torch.float64), torch.randn(batch, dtype=torch.float64)
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    assert naive_error(model, squared_error, x, y, frame) < TOLERANCE
    found = survey_of(model, x, trainable(model), {})
    assert found.tables == {"places.weight": (None,), "signs.weight": (0,)}


def test_negative_control_positions_taken_for_examples(monkeypatch):
    """Then one example would have a row of its own for each position, and each would be clipped
    alone.
    """
    wrong = Survey({"places.weight": (0,), "signs.weight": (0,)})
    monkeypatch.setattr("fedlsg.gradients.per_example.survey_of", lambda *_: wrong)
    torch.manual_seed(0)
    model = Positions().double()
    x, y = torch.randn(5, 5, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    assert (
        naive_error(
            model, squared_error, x, y, make_frame(model, rank=1, sparsity=0.0, carry=False)
        )
        > 1e-3
    )


class Words(nn.Module):
    """Reads ids through a function, and puts words through another one before a layer; ``tied``: a
    language model.
    """

    def __init__(
        self, ids: Callable[[Tensor], Tensor], turn: Callable[[Tensor], Tensor], *, tied: bool
    ) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.layer, self.head = nn.Embedding(9, 4), nn.LSTM(4, 4), nn.Linear(4, 9)
        self.ids, self.turn = ids, turn
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.turn(self.words(self.ids(ids))))[0][-1])


def as_it_is(x: Tensor) -> Tensor:
    return x


def time_first(x: Tensor) -> Tensor:
    return x.transpose(0, 1)


SHAPE = r"shape \(30,\), of which no dimension is the batch of 5 alone; embed the ids batch first"
ROWS = {
    "in one row": (
        lambda x: x.flatten(),
        lambda x: time_first(x.unflatten(0, (-1, 6))),
        False,
        SHAPE,
    ),
    "in one row, tied": (
        lambda x: x.flatten(),
        lambda x: time_first(x.unflatten(0, (-1, 6))),
        True,
        SHAPE,
    ),
}
FIXES = {
    "batch first": (as_it_is, time_first, False),
    "batch first, tied": (as_it_is, time_first, True),
    "computed": (lambda ids: ids + 1, time_first, False),
    "computed, tied": (lambda ids: ids + 1, time_first, True),
    "time first": (time_first, as_it_is, False),
    "time first, tied": (lambda x: x.t().contiguous(), as_it_is, True),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_that_are_not_those_of_the_batch_name_themselves(case):
    ids, turn, tied, message = ROWS[case]
    model = Words(ids, turn, tied=tied)
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    with pytest.raises(UnsupportedLayerError, match=message):
        per_example_gradients(model, squared_error, torch.randint(8, (5, 6)), torch.randn(5), frame)


@pytest.mark.parametrize("case", FIXES)
def test_the_fixes_for_them_have_the_gradients_of_autograd(case):
    ids, turn, tied = FIXES[case]
    model = Words(ids, turn, tied=tied).double()
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    y = torch.randn(5, dtype=torch.float64)
    assert naive_error(model, squared_error, torch.randint(8, (5, 6)), y, frame) < TOLERANCE


@pytest.mark.parametrize(
    "start", [lambda p, size: torch.cat([p] * size, 1), lambda p, size: p.repeat(1, size, 1).tanh()]
)
def test_a_first_state_that_is_no_copy_for_each_example_names_itself(start):
    class Start(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 3, batch_first=True)
            self.start = nn.Parameter(torch.randn(1, 1, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x, start(self.start, len(x)))[0][:, -1]

    model = Start()
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    message = (
        r"^start: goes into the layer layer as a first state \(hidden state\) of shape \(1, 4, "
        r"3\).*expand one value"
    )
    with pytest.raises(UnsupportedLayerError, match=message):
        per_example_gradients(model, squared_error, torch.randn(4, 5, 4), torch.randn(4), frame)
