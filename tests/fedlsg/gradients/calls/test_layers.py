"""Layers with a function of their call, and parameters with uses: against autograd, one example at
a time.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedlsg.gradients.calls import recurrent, registry
from fedlsg.gradients.calls.registry import BUILT_IN
from fedlsg.gradients.formulas import call_formulas
from fedlsg.gradients.formulas.ghost import GhostGradients
from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError, trainable
from fedlsg.gradients.isolation import block_gradients, per_example_gradients
from fedlsg.privacy import Mechanism, clipped_sum
from tests.fedlsg.support.gradient_oracle import TOLERANCE, error, make_frame, naive, naive_error
from tests.fedlsg.support.layer_zoo import ZOO, Attention, Case, Recurrent, loss

zoo = pytest.mark.parametrize("case", ZOO)


@pytest.mark.thinned(44)
@zoo
@pytest.mark.parametrize("batch", [1, 4, 5])
def test_every_parameter_has_the_gradients_of_autograd(case, batch):
    model, x, y = ZOO[case].build(batch)
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    assert [c.name for c in frame.coordinates] == list(trainable(model))
    before = {
        name: (p, p.requires_grad) for name, p in model.named_parameters(remove_duplicate=False)
    }
    assert naive_error(model, loss, x, y, frame) < TOLERANCE
    assert {
        n: (p, p.requires_grad) for n, p in model.named_parameters(remove_duplicate=False)
    } == before


@zoo
def test_masked_blocks(case):
    model, x, y = ZOO[case].build()
    frame = make_frame(model, rank=1, sparsity=0.4, carry=False, flat=True)
    assert naive_error(model, loss, x, y, frame) < TOLERANCE


@zoo
def test_the_clipped_sum_is_that_of_dense_gradients(case, monkeypatch):
    """Whatever is kept as rows or factors; all of them if ghost clipping always pays."""
    monkeypatch.setattr("fedlsg.gradients.formulas.embedding_rows.worth_it", lambda weight: True)
    monkeypatch.setattr(
        "fedlsg.gradients.formulas.embedding_rows.product_is_cheaper", lambda weight, g: True
    )
    model, x, y = ZOO[case].build()
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    mechanism = Mechanism(kind="clip-only", clip_norm=0.5)
    blocks = block_gradients(model, loss, x, y, frame)
    factors = any(type(m) is nn.Embedding for m in model.modules())
    assert any(isinstance(b, GhostGradients) for b in blocks) == factors
    wanted = clipped_sum(naive(model, loss, x, y, frame), mechanism)
    torch.testing.assert_close(clipped_sum(blocks, mechanism), wanted, rtol=1e-9, atol=1e-12)


@zoo
def test_float32_with_everything_before_frozen(case):
    """The graph starts at a layer in the middle; inputs of lower precision than the oracle's."""
    model, x, y = ZOO[case].build()
    names = list(trainable(model))
    for name in names[: len(names) // 2]:
        model.get_parameter(name).requires_grad_(False)
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    assert naive_error(model, loss, x, y, frame) < TOLERANCE
    exact = naive(model, loss, x, y, frame)
    got = per_example_gradients(
        model.float(), loss, x if ZOO[case].words else x.float(), y.float(), frame
    )
    assert error([t.double() for t in got], exact) < 1e-4


@pytest.mark.gpu
@zoo
def test_the_same_on_cuda(case):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model, x, y = ZOO[case].build()
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    wanted = naive(model, loss, x, y, frame)
    got = per_example_gradients(model.cuda(), loss, x.cuda(), y.cuda(), frame)
    assert all(t.is_cuda for t in got)
    assert error([t.cpu() for t in got], wanted) < TOLERANCE
    blocks = block_gradients(model, loss, x.cuda(), y.cuda(), frame)
    mechanism = Mechanism(kind="clip-only", clip_norm=0.5)
    torch.testing.assert_close(clipped_sum(blocks, mechanism).cpu(), clipped_sum(wanted, mechanism))


def test_a_gradient_of_another_example_is_caught(monkeypatch):
    """Negative controls of the oracle."""
    honest, step = call_formulas.rms_norm, recurrent._step
    monkeypatch.setattr(
        recurrent, "_step", lambda mode, a, u, state: step(mode, a * 1.0001, u, state)
    )
    mixed = replace(
        BUILT_IN[nn.RMSNorm],
        gradients=lambda m, x, g: {n: v + 1e-6 * v.roll(1, 0) for n, v in honest(m, x, g).items()},
    )
    monkeypatch.setattr(registry, "BUILT_IN", {**BUILT_IN, nn.RMSNorm: mixed})
    for case in ("RMSNorm", "LSTM"):
        model, x, y = ZOO[case].build()
        frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
        assert naive_error(model, loss, x, y, frame) > TOLERANCE


class Own(nn.Module):
    """A module that a test's function calls."""

    def __init__(self, layer: nn.Module, forward) -> None:
        super().__init__()
        self.layer, self.route = layer, forward

    def forward(self, x):
        return self.route(self.layer, x)


REFUSED = {
    "attention with dropout": (
        Case(lambda: Attention(dropout=0.1), (5, 3)),
        r"attention .*dropout.*module.dropout = 0.0",
    ),
    "recurrent layer with dropout": (
        Case(lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.1), (5, 3)),
        r"layer \(LSTM\).*dropout=0",
    ),
    "max_norm": (
        Case(lambda: nn.Embedding(9, 4, max_norm=1.0), (2,), words=True),
        "set max_norm=None",
    ),
    "scale by frequency": (
        Case(lambda: nn.Embedding(9, 4, scale_grad_by_freq=True), (2,), words=True),
        "mixes examples; set it to False",
    ),
    "statistics in eval mode": (
        Case(lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True).eval(), (4, 5)),
        "track_running_stats",
    ),
    "no batch dimension": (
        Case(lambda: Own(nn.Conv1d(3, 4, 2), lambda m, x: m(x[0]).expand(len(x), -1, -1)), (3, 5)),
        "batch dimension",
    ),
    "a batch on another axis": (
        Case(lambda: Own(nn.GRU(3, 2), lambda m, x: m(x)[0]), (5, 3)),
        r"batch of 4 on dimension 1.*\(4, 5, 3\)",
    ),
    "an input changed in place": (
        Case(lambda: Own(nn.RMSNorm(4), lambda m, x: (y := x + 1, m(y), y.zero_())[1]), (4,)),
        "changed in place",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name_with_the_fix(case):
    made, message = REFUSED[case]
    model, x, y = made.build()
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    with pytest.raises(UnsupportedLayerError, match=message):
        per_example_gradients(model, loss, x, y, frame)
    assert all(p.requires_grad and type(p) is nn.Parameter for p in model.parameters())
