"""Layers that are called several times, and weights (n, m): gradients, what one example moves, and planted mistakes."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from fedlsg.carriers import Lora, LowRank, adapted_layers, carried_parameters, merge, prepare_model
from fedlsg.gradients import block_gradients
from fedlsg.gradients.formulas.layers import TransposedLinear
from fedlsg.gradients.hooks import Pass
from fedlsg.privacy import Mechanism, clipped_sum
from tests.fedlsg.support.gradient_oracle import TOLERANCE, make_frame, naive_error, squared_error

BATCH = 5


class Depth(nn.Module):
    """One layer, its norm and its convolution for every step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm, self.turned = nn.Linear(4, 4), nn.LayerNorm(4), TransposedLinear(4, 4)
        nn.init.normal_(self.turned.weight)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.norm(self.turned(self.layer(x)).tanh()) + x
        return x


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(1)
    return Depth().double(), torch.randn(BATCH, 3, 4, dtype=torch.float64), torch.randn(BATCH, dtype=torch.float64)


@pytest.mark.parametrize(("sparsity", "flat", "carry"), product((0.0, 0.4), (False, True), (False, True)))
def test_gradients_of_the_calls_are_added(sparsity, flat, carry):
    model, x, y = problem()
    frame = make_frame(model, rank=2, sparsity=sparsity, carry=carry, flat=flat)
    assert naive_error(model, squared_error, x, y, frame) < TOLERANCE


def moved(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """How far the first example moves the clipped sum, in clip norms."""
    mechanism = Mechanism(kind="clip-only", clip_norm=0.1)
    frame = make_frame(model, rank=2, sparsity=0.0)
    whole, rest = (
        clipped_sum(block_gradients(model, squared_error, x[i:], y[i:], frame), mechanism, wide=True) for i in (0, 1)
    )
    return float((whole - rest).norm()) / 0.1


def test_one_example_moves_the_sum_by_the_clip_norm(monkeypatch):
    """Planted: calls become blocks of other examples, and each is clipped alone."""
    model, x, y = problem()
    assert moved(model, x, y) <= 1 + 1e-9

    def apart(self: Pass, position: int, value: Tensor) -> None:
        before = self.values[position]
        self.values[position] = value if before is None else torch.cat([before, value])

    monkeypatch.setattr(Pass, "add", apart)
    model.norm.requires_grad_(False)
    assert moved(model, x, y) > 1.5


def test_conv1d_of_transformers_is_carried_and_adapted():
    """LoRA's product in it is that of the merged weight; embeddings are frozen unless asked."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2, "num_labels": 3}
    config = transformers.GPT2Config(pad_token_id=0, bos_token_id=0, eos_token_id=0, use_cache=False, **sizes)

    def build() -> nn.Module:
        torch.manual_seed(0)
        return transformers.GPT2ForSequenceClassification(config).double().eval()

    plain = build()
    assert len(carried_parameters(plain, LowRank(rank=2))) == 4
    for embeddings in (False, True):
        model = prepare_model(build(), Lora(rank=2, embeddings=embeddings), seed=0)
        assert model.transformer.wte.weight.requires_grad is embeddings
    assert len(adapted_layers(model)) == 4
    ids = torch.randint(1, 20, (4, 6))
    torch.testing.assert_close(model(ids).logits, plain(ids).logits)
    for layer in adapted_layers(model).values():
        nn.init.normal_(layer.up.weight)
    plain.load_state_dict(merge(model.state_dict(), list(adapted_layers(model)), 1.0))
    torch.testing.assert_close(model(ids).logits, plain(ids).logits)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs.logits, targets, reduction="none")

    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    assert naive_error(model, loss, ids, torch.randint(3, (4,)), frame) < TOLERANCE
