"""LoRA: the factors are trained, W is not; masks follow the effective weight; gradients are the
product rule's.
"""

import copy

import pytest
import torch
from torch import nn

from fedlsg.carriers import Lora, prepare_model
from fedlsg.carriers.lora import (
    BASE,
    Adapted,
    adapted_layers,
    effective_weight,
    frozen_bases,
    merge,
)
from fedlsg.frame import Frame
from fedlsg.gradients.hooked_pass.supported import trainable
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.masks.freezing import keep_units, unit_importance
from fedlsg.masks.mask import Mask
from fedlsg.method import Method, Schedule, make_frame
from tests.fedlsg.support.gradient_oracle import cross_entropy

LORA = Lora(rank=2, alpha=6.0)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3)).double()


def cnn() -> nn.Module:
    layers = [
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.GroupNorm(2, 8),
        nn.Tanh(),
        nn.Conv2d(8, 8, 3, bias=False),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 4, 3)).double()


MODELS = {"mlp": (mlp, (16,)), "cnn": (cnn, (3, 7, 7))}


def adapted(kind: str, *, moved: bool = True) -> tuple[nn.Module, nn.Module]:
    """(the model before, the same with adapters); ``moved`` gives B other values than zero."""
    torch.manual_seed(0)
    before = MODELS[kind][0]()
    model = prepare_model(copy.deepcopy(before), LORA, seed=1)
    if moved:
        for module in model.modules():
            if isinstance(module, Adapted):
                nn.init.normal_(module.up.get_parameter("weight"))
    return before, model


def frame_of(model: nn.Module, mask: Mask) -> Frame:
    method = Method(name="lora", carrier=LORA, mask=mask)
    weights = {name: p.detach() for name, p in trainable(model).items()}
    return make_frame(
        method,
        weights,
        frozen_bases(model),
        carried=(),
        round=1,
        updates=0,
        schedule=Schedule(rounds=1),
        seed=0,
    )


@pytest.mark.parametrize("kind", MODELS)
def test_the_start_changes_nothing_and_later_it_is_the_effective_weight(kind):
    before, model = adapted(kind, moved=False)
    x = torch.randn(4, *MODELS[kind][1], dtype=torch.float64)
    torch.testing.assert_close(model(x), before(x))
    before, model = adapted(kind)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    for path, module in model.named_modules():
        if isinstance(module, Adapted):
            W = effective_weight(path, weights, frozen_bases(model), LORA.scale)
            before.get_submodule(path).get_parameter("weight").data.copy_(W)
    torch.testing.assert_close(model(x), before(x))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("sparsity", [0.0, 0.5])
def test_per_example_gradients_are_autograd_s_at_the_kept_coordinates(kind, sparsity):
    _, model = adapted(kind)
    frame = frame_of(model, Mask(kind="units", sparsity=sparsity))
    x, y = torch.randn(4, *MODELS[kind][1], dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    got = torch.cat(per_example_gradients(model, cross_entropy, x, y, frame), 1)
    for i in range(4):
        loss = cross_entropy(model(x[i : i + 1]), y[i : i + 1]).sum()
        dense = torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(trainable(model).values()))]
        )
        torch.testing.assert_close(got[i], dense[frame.indices])
    assert (frame.kept < frame.size) == (sparsity > 0)


@pytest.mark.parametrize("kind", MODELS)
def test_rows_of_up_and_columns_of_down_follow_the_importance_of_the_effective_weight(kind):
    _, model = adapted(kind)
    frame = frame_of(model, Mask(kind="units", sparsity=0.5))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    seen = 0
    for block in frame.blocks:
        for suffix, axis in ((".up.weight", 0), (".down.weight", 1)):
            if block.parameter.endswith(suffix):
                path = block.parameter.removesuffix(suffix)
                W = effective_weight(path, weights, frozen_bases(model), LORA.scale)
                expected = keep_units(unit_importance(W)[axis], 0.5)
                assert (block.keep.axis, block.keep.index.tolist()) == (axis, expected.tolist())
                # Negative control: the importance of W_0 alone is another mask here.
                seen += (
                    keep_units(unit_importance(weights[path + BASE])[axis], 0.5).tolist()
                    != expected.tolist()
                )
            elif not block.parameter.endswith((".up.weight", ".down.weight")):
                assert block.kept == block.size
    assert seen


@pytest.mark.parametrize("kind", MODELS)
def test_merged_factors_are_the_plain_model(kind):
    """Same names in the same order, same function; negative control: the start, where B = 0, is
    another one.
    """
    before, model = adapted(kind)
    paths = list(adapted_layers(model))
    tensors = merge(model.state_dict(), paths, LORA.scale)
    assert list(tensors) == list(before.state_dict())
    x = torch.randn(2, *MODELS[kind][1], dtype=torch.float64)
    plain = copy.deepcopy(before)
    plain.load_state_dict(tensors)
    torch.testing.assert_close(plain(x), model(x))
    assert not torch.allclose(before(x), model(x))
