"""Blocks of every supported layer, of tables and of weight-standardised convolutions against
autograd.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedlsg.gradients.formulas.embedding_rows import RowGradients, TiedGradients, product, tied
from fedlsg.gradients.formulas.layers import units
from fedlsg.gradients.formulas.standardized import StandardizedConv2d
from fedlsg.privacy import Mechanism, clipped_sum
from tests.fedlsg.support.gradient_oracle import TOLERANCE, make_frame, naive_error, squared_error

sizes = st.integers(1, 7)
quick = settings(max_examples=60, deadline=None)
even_same = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
masks = {
    "sparsity": st.sampled_from([0.0, 0.3, 0.5]),
    "rank": st.integers(1, 4),
    "flat": st.booleans(),
}


def layer_error(
    layer: nn.Module, x: Tensor, *, rank: int, sparsity: float, flat: bool, carry: bool = True
) -> float:
    """Error of one layer's blocks. A frozen layer behind it makes the gradient differ between
    positions.
    """
    torch.manual_seed(5)
    for p in layer.parameters():
        nn.init.normal_(p)
    model = nn.Sequential(layer, nn.Tanh()).double()
    x, targets = x.double(), torch.randn(len(x), dtype=torch.float64)
    frame = make_frame(model, rank=rank, sparsity=sparsity, carry=carry, flat=flat)
    return naive_error(model, squared_error, x, targets, frame)


@given(
    m=sizes,
    n=sizes,
    batch=st.integers(1, 4),
    positions=st.lists(st.integers(1, 5), max_size=2),
    bias=st.booleans(),
    carry=st.booleans(),
    **masks,
)
@quick
def test_linear(m, n, batch, positions, bias, carry, sparsity, rank, flat):
    layer, x = nn.Linear(n, m, bias=bias), torch.randn(batch, *positions, n)
    assert layer_error(layer, x, rank=rank, sparsity=sparsity, flat=flat, carry=carry) < TOLERANCE


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Linear(4, 5), (3, 4)), (nn.Conv2d(1, 9, 2), (3, 1, 5, 5))],
    ids=["linear", "conv"],
)
@pytest.mark.parametrize("carry", [True, False])
def test_a_bias_that_comes_before_its_weight(layer, shape, carry):
    """As after ``del layer.weight`` and a new one: the blocks of the layer have another order."""
    weight = layer.weight
    del layer.weight
    layer.weight = weight
    assert next(iter(layer._parameters)) == "bias"
    assert (
        layer_error(layer, torch.randn(shape), rank=2, sparsity=0.3, flat=False, carry=carry)
        < TOLERANCE
    )


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Conv2d, Tensor]:
    """A convolution and an input that fits under its kernel."""
    pair = st.tuples
    kernel, dilation = draw(pair(*[st.integers(1, 4)] * 2)), draw(pair(*[st.integers(1, 3)] * 2))
    stride, padding = draw(pair(*[st.integers(1, 3)] * 2)), draw(pair(*[st.integers(0, 4)] * 2))
    named = draw(st.sampled_from([None, None, "same", "valid"]))
    channels, filters = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    conv = nn.Conv2d(
        channels,
        filters,
        kernel,
        stride=1 if named == "same" else stride,
        padding=named or padding,
        dilation=dilation,
        bias=draw(st.booleans()),
    )
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    unpadded = [
        r if named == "valid" else max(1, r - 2 * p) for r, p in zip(reach, padding, strict=True)
    ]
    size = [u + draw(st.integers(0, 4)) for u in unpadded]
    x = torch.randn(draw(st.integers(1, 3)), channels, *size)
    return conv, x.contiguous(memory_format=torch.channels_last) if draw(st.booleans()) else x


@even_same
@given(layer=convolutions(), carry=st.booleans(), **masks)
@settings(max_examples=150, deadline=None)
def test_convolution(layer, carry, sparsity, rank, flat):
    assert layer_error(*layer, rank=rank, sparsity=sparsity, flat=flat, carry=carry) < TOLERANCE


@pytest.mark.parametrize("order", ["as made", "channels last", "turned"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((4, 7), 1), ((4, 7), 0), ((4, 3, 7), -1), ((0, 3, 7), 2), ((4, 7, 3, 2), 1)],
)
def test_kept_units_are_the_same_whatever_lies_side_by_side(shape, axis, order):
    t = torch.randn(shape)
    if order == "turned":
        t = t.mT.contiguous().mT
    elif order == "channels last" and t.ndim == 4:
        t = t.to(memory_format=torch.channels_last)
    index = torch.tensor([0, 2, 3]) if t.shape[axis] >= 4 else torch.tensor([0])
    assert torch.equal(units(t, axis, index), t.index_select(axis, index))


def rows(dtype: torch.dtype = torch.float64, padding: int | None = None) -> RowGradients:
    torch.manual_seed(0)
    table = nn.Embedding(11, 3, padding_idx=padding, dtype=dtype)
    g = torch.randn(5, 7, 3, dtype=dtype)
    return RowGradients(table, g, torch.randint(4, (5, 7)), g._version, padding)


@pytest.mark.parametrize("padding", [None, 2])
def test_norms_and_sums_are_those_of_the_dense_gradients(padding):
    gradients = rows(padding=padding)
    dense = torch.zeros(5, 11, 3, dtype=torch.float64)
    for b in range(5):
        for t in range(7):
            if gradients.x[b, t] != padding:
                dense[b, gradients.x[b, t]] += gradients.g[b, t]
    torch.testing.assert_close(gradients.dense(), dense)
    torch.testing.assert_close(gradients.dense(torch.tensor([0, 2])), dense[:, :, [0, 2]])
    torch.testing.assert_close(gradients.norms(), dense.flatten(1).norm(dim=1))
    factors = torch.rand(5, dtype=torch.float64)
    finite = torch.tensor([True, True, False, True, True])
    wanted = torch.einsum("b,bvd->vd", factors * finite, dense).flatten()
    torch.testing.assert_close(gradients.weighted_sum(factors, finite), wanted)
    torch.testing.assert_close(gradients.first(2).norms(), gradients.norms()[:2])


def test_rows_that_cancel_are_rounded_before_the_norm_is_taken():
    """The norm is that of the very numbers in the sum: equal tokens whose gradients cancel leave
    rounding only once.
    """
    gradients = rows(torch.float32)
    gradients.g[:, 1::2] = -gradients.g[:, :-1:2] * (1 + 1e-6)
    gradients.x[:] = 1
    given = RowGradients(gradients.layer, gradients.g, gradients.x, gradients.g._version)
    summed = given.weighted_sum(torch.ones(5), torch.ones(5, dtype=torch.bool))
    torch.testing.assert_close(summed, given.dense().double().sum(0).flatten(), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        given.norms(), given.dense().double().flatten(1).norm(dim=1), rtol=1e-12, atol=0
    )


def test_an_example_that_is_not_finite_adds_nothing():
    gradients = rows()
    gradients.g[3, 2] = torch.inf
    given = RowGradients(gradients.layer, gradients.g, gradients.x, gradients.g._version)
    mechanism = Mechanism(kind="clip-only", clip_norm=0.1)
    others = [0, 1, 2, 4]
    rest = replace(given, g=given.g[others], x=given.x[others], version=0)
    torch.testing.assert_close(clipped_sum([given], mechanism), clipped_sum([rest], mechanism))


def both(dtype: torch.dtype = torch.float64) -> TiedGradients:
    table = rows(dtype, padding=2)
    g, x = torch.randn(5, 6, 11, dtype=dtype), torch.randn(5, 6, 3, dtype=dtype)
    return tied(product(table.layer, g, x), table)


def test_a_shared_weight_is_one_gradient():
    """Norms of the sum of both uses: their squares must not be added."""
    gradients = both()
    dense = gradients.linear.dense() + gradients.table.dense()
    wanted = dense.flatten(1).norm(dim=1)
    torch.testing.assert_close(gradients.norms(), wanted)
    apart = (gradients.linear.norms().square() + gradients.table.norms().square()).sqrt()
    assert (apart / wanted - 1).abs().max() > 1e-2, "negative control"
    factors = torch.rand(5, dtype=torch.float64)
    finite = torch.tensor([True, True, False, True, True])
    wanted = torch.einsum("b,bvd->vd", factors * finite, dense).flatten()
    torch.testing.assert_close(gradients.weighted_sum(factors, finite), wanted)
    torch.testing.assert_close(gradients.part(1, 3).norms(), gradients.norms()[1:3])


def test_uses_that_cancel_have_a_norm_that_bounds_the_sum():
    gradients = both(torch.float32)
    g, x = gradients.g, gradients.x
    table = replace(
        gradients.table,
        g=-(g.mT @ x)[:, :7].float(),
        x=torch.arange(7).expand(5, 7),
        padding=None,
        version=0,
    )
    g[:, :, 7:] = 0
    found = tied(product(gradients.layer, g, x), table)
    lengths = (found.linear.dense().double() + found.table.dense().double()).flatten(1).norm(dim=1)
    assert (found.norms() >= lengths).all()
    assert (found.norms() >= 1e-3 * found.table.norms()).all()


@st.composite
def problems(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A standardised convolution under tanh, and a batch; some filters are nearly constant, or all
    zeros.
    """
    pair = st.tuples
    kernel, dilation = draw(pair(*[st.integers(1, 3)] * 2)), draw(pair(*[st.integers(1, 2)] * 2))
    stride, padding = draw(pair(*[st.integers(1, 3)] * 2)), draw(pair(*[st.integers(0, 2)] * 2))
    channels, filters = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    conv = StandardizedConv2d(
        channels,
        filters,
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        bias=draw(st.booleans()),
    )
    torch.manual_seed(draw(st.integers(0, 9)))
    for p in conv.parameters():
        nn.init.normal_(p)
    with torch.no_grad():
        conv.weight[0].mul_(draw(st.sampled_from([0.0, 1e-3, 1.0, 100.0]))).add_(
            draw(st.sampled_from([0.0, 0.3]))
        )
    size = [
        d * (k - 1) + 1 + draw(st.integers(0, 3)) for k, d in zip(kernel, dilation, strict=True)
    ]
    return nn.Sequential(conv, nn.Tanh()).double(), torch.randn(
        draw(st.integers(1, 3)), channels, *size
    ).double()


def gradient_error(
    model: nn.Module, x: Tensor, *, rank: int, sparsity: float, flat: bool, carry: bool = True
) -> float:
    targets = torch.linspace(-1, 1, len(x)).double()
    frame = make_frame(model, rank=rank, sparsity=sparsity, carry=carry, flat=flat)
    return naive_error(model, squared_error, x, targets, frame)


@given(problem=problems(), carry=st.booleans(), **masks)
@settings(max_examples=150, deadline=None)
def test_blocks_equal_autograd(problem, carry, sparsity, rank, flat):
    assert (
        gradient_error(*problem, rank=rank, sparsity=sparsity, flat=flat, carry=carry) < TOLERANCE
    )


def stack(bias: bool = True) -> tuple[nn.Module, Tensor]:
    """Two standardised convolutions with norms between, as in a network."""
    torch.manual_seed(4)
    layers = [
        StandardizedConv2d(4, 6, 3, stride=2, padding=1, bias=bias),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        StandardizedConv2d(6, 8, 3, padding=1, bias=bias),
        nn.Flatten(),
        nn.Linear(8 * 3 * 3, 3),
    ]
    model = nn.Sequential(*layers).double()
    for p in model.parameters():
        nn.init.normal_(p)
    return model, torch.randn(3, 4, 6, 6).double()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("carry", [True, False])
def test_a_network_of_them_equals_autograd(bias, carry):
    assert gradient_error(*stack(bias), rank=3, sparsity=0.3, flat=False, carry=carry) < TOLERANCE
