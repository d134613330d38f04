"""State dicts with the names of torchvision and timm: their logits after conversion, and what is
refused.
"""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from examples.convert_weights import converted, read_arrays
from fedlsg.simulations.models import vision

BLOCKS = (3, 4, 6, 3)
State = dict[str, Tensor]


def made(seed: int, *, bottleneck: bool, classes: int = 4) -> State:
    """A ResNet with group norm as timm names it (``resnet50_gn``)."""
    draw = torch.Generator().manual_seed(seed)
    found: State = {}

    def conv(name: str, before: int, after: int, kernel: int) -> None:
        weight = torch.empty(after, before, kernel, kernel)
        found[f"{name}.weight"] = weight.normal_(
            0, (2 / (before * kernel * kernel)) ** 0.5, generator=draw
        )

    def norm(name: str, size: int) -> None:
        found[f"{name}.weight"] = torch.empty(size).uniform_(0.5, 1.5, generator=draw)
        found[f"{name}.bias"] = torch.empty(size).normal_(0, 0.2, generator=draw)

    conv("conv1", 3, 64, 7)
    norm("bn1", 64)
    before = 64
    for stage, count in enumerate(BLOCKS, start=1):
        inner = 32 * 2**stage
        after = 4 * inner if bottleneck else inner
        for block in range(count):
            sizes = [(before, inner, 1), (inner, inner, 3), (inner, after, 1)]
            for k, (start, end, kernel) in enumerate(
                sizes if bottleneck else [(before, inner, 3), (inner, inner, 3)], 1
            ):
                conv(f"layer{stage}.{block}.conv{k}", start, end, kernel)
                norm(f"layer{stage}.{block}.bn{k}", end)
            if block == 0 and (stage > 1 or before != after):
                conv(f"layer{stage}.{block}.downsample.0", before, after, 1)
                norm(f"layer{stage}.{block}.downsample.1", after)
            before = after
    found["fc.weight"] = torch.empty(classes, before).normal_(0, 0.1, generator=draw)
    found["fc.bias"] = torch.empty(classes).normal_(generator=draw)
    return found


def logits(state: State, x: Tensor) -> Tensor:
    """Their forward pass, written out on their names."""

    def conv(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2)

    def norm(name: str, x: Tensor) -> Tensor:
        return F.group_norm(x, 32, state[f"{name}.weight"], state[f"{name}.bias"])

    x = F.max_pool2d(norm("bn1", conv("conv1", x, 2)).relu(), 3, 2, 1)
    for stage, count in enumerate(BLOCKS, start=1):
        for block in range(count):
            at, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            down = f"{at}.downsample"
            skip = (
                norm(f"{down}.1", conv(f"{down}.0", x, stride))
                if f"{down}.0.weight" in state
                else x
            )
            if f"{at}.conv3.weight" in state:
                x = norm(f"{at}.bn1", conv(f"{at}.conv1", x)).relu()
                x = norm(f"{at}.bn2", conv(f"{at}.conv2", x, stride)).relu()
                x = norm(f"{at}.bn3", conv(f"{at}.conv3", x))
            else:
                x = norm(f"{at}.bn1", conv(f"{at}.conv1", x, stride)).relu()
                x = norm(f"{at}.bn2", conv(f"{at}.conv2", x))
            x = (x + skip).relu()
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize(("name", "bottleneck"), [("resnet-34", False), ("resnet-50", True)])
def test_logits_are_theirs(name, bottleneck, tmp_path):
    state = made(0, bottleneck=bottleneck)
    save_file(state, tmp_path / "w.safetensors")
    found, weights = converted(read_arrays(tmp_path / "w.safetensors"))
    assert found == name
    model = vision(3, 64, 4)[name]()
    model.load_state_dict(weights)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    theirs = logits(state, x)
    torch.testing.assert_close(model(x), theirs, atol=1e-3, rtol=1e-3)
    swapped = {**state, "layer1.0.bn1.bias": state["layer1.0.bn2.bias"]}  # negative control
    assert (logits(swapped, x) - theirs).abs().max() > 0.01
