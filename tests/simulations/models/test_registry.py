"""The models: shapes and counts by hand, public and repeatable weights, only layers that can be made private."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from simulations import models
from simulations.models.resnet import wide_resnet
from simulations.models.small import small_cnn
from simulations.workloads import LoadedWorkload, Split, build_model

MODELS = {
    "mlp": (models.digits_mlp, (1, 8, 8)),
    "conv": (models.digits_conv, (1, 8, 8)),
    "cnn": (partial(small_cnn, 3, 32, 10), (3, 32, 32)),
    "cnn-wide": (partial(small_cnn, 3, 32, 10, width=32), (3, 32, 32)),
}
ALLOWED = (nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm, nn.Tanh, nn.AvgPool2d, nn.MaxPool2d, nn.Flatten)


def workload_of() -> LoadedWorkload:
    split = Split(inputs=torch.zeros(2, 1).numpy(), labels=torch.tensor([0, 1]), prepare=torch.from_numpy)
    builders = {name: builder for name, (builder, _) in MODELS.items()}
    return LoadedWorkload(name="made", train=split, test=split, num_classes=10, models=builders, defaults={})


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("mlp", (64 * 64 + 64) + (64 * 10 + 10)),
        ("conv", (16 * 9 + 16 + 2 * 16) + (32 * 16 * 9 + 32 + 2 * 32) + (128 * 10 + 10)),
        (
            "cnn",
            (16 * 27 + 3 * 16)
            + (32 * 144 + 3 * 32)
            + (64 * 288 + 3 * 64)
            + (64 * 576 + 3 * 64)
            + (1024 * 64 + 64)
            + (64 * 10 + 10),
        ),
        (
            "cnn-wide",
            (32 * 27 + 3 * 32)
            + (64 * 288 + 3 * 64)
            + (128 * 576 + 3 * 128)
            + (128 * 1152 + 3 * 128)
            + (2048 * 128 + 128)
            + (128 * 10 + 10),
        ),
    ],
)
def test_parameter_counts_by_hand(name, count):
    builder, _ = MODELS[name]
    assert sum(parameter.numel() for parameter in builder().parameters()) == count
    assert f"{count:,} parameters" in getattr(builder, "func", builder).__doc__


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_can_be_made_private(name):
    leaves = [module for module in MODELS[name][0]().modules() if not list(module.children())]
    assert all(isinstance(leaf, ALLOWED) for leaf in leaves), leaves
    assert len({id(leaf) for leaf in leaves}) == len(leaves)
    assert not any(getattr(leaf, "inplace", False) for leaf in leaves)


def mixes_examples(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether one example's logits change when the other examples of its batch do."""
    model.train()
    images = torch.randn(4, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    other = torch.cat([images[:1], images[1:] * 3])
    model.double()
    return not torch.allclose(model(images)[0], model(other)[0], atol=1e-9)


SMALL = {
    form: (partial(wide_resnet, 10, 1, channels=1, num_classes=2, form=form), (1, 8, 8))
    for form in ("rgp", "standard", "standardized")
}


@pytest.mark.parametrize(("builder", "shape"), (MODELS | SMALL).values(), ids=[*MODELS, *SMALL])
def test_no_layer_mixes_examples(builder, shape):
    assert not mixes_examples(builder(), shape)


@given(seed=st.integers(0, 2**63 - 1), name=st.sampled_from(list(MODELS)))
def test_the_seed_alone_decides_the_weights(seed, name):
    torch.manual_seed(seed % 17)
    before = torch.get_rng_state()
    first = build_model(workload_of(), name, seed)
    assert torch.equal(torch.get_rng_state(), before)  # the global state is neither read nor moved
    torch.manual_seed(99)
    again = build_model(workload_of(), name, seed)
    other = build_model(workload_of(), name, (seed + 1) % 2**63)
    assert all(map(torch.equal, first.parameters(), again.parameters()))
    assert not torch.equal(first.classifier.weight, other.classifier.weight)
