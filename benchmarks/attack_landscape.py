"""How far the gradient of a ResNet turns when its input moves a little: how wide the basin of a matching attack is.

    python -m benchmarks.attack_landscape

For models before training and inputs x + s n, n standard normal (one unit is a quarter of the pixel range): the mean
over images of 1 - cos between the gradients at x and at x + s n, of the first convolution and of all parameters.
"""

import argparse
from types import SimpleNamespace
from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.attack_resnet import MODELS, loss_fn, without_norms
from benchmarks.cifar16 import halved, normalise
from fedlsg.attacks.observation import Observation
from fedlsg.attacks.replay import cosine, dense_gradients

SPREADS = (0.03, 0.1, 0.3, 1.0)


def one_group(model: nn.Module) -> nn.Module:
    """The same with GroupNorm of a single group, in place."""
    for name, child in model.named_children():
        if isinstance(child, nn.GroupNorm):
            setattr(model, name, nn.GroupNorm(1, child.num_channels))
        else:
            one_group(child)
    return model


NORMS = {"none": without_norms, "one group": one_group, "group": lambda model: model}


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """The gradient of each parameter."""
    seen = cast(Observation, SimpleNamespace(model=model, loss_fn=loss_fn))
    return [G.detach().flatten() for G in dense_gradients(seen, x, y).values()]


def turned(model: nn.Module, images: Tensor, labels: Tensor, spread: float) -> tuple[float, float]:
    """(first convolution, all parameters), mean over images."""
    generator, first, every = torch.Generator().manual_seed(0), 0.0, 0.0
    for x, y in zip(images.split(1), labels.split(1), strict=True):
        here = gradients(model, x, y)
        there = gradients(model, x + spread * torch.randn(x.shape, generator=generator), y)
        first += cosine(there[0], here[0]).item() / len(labels)
        every += cosine(torch.cat(there), torch.cat(here)).item() / len(labels)
    return first, every


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, choices=(16, 32), default=16)
    parser.add_argument("--images", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pixels, labels = halved("test", by=32 // options.side)
    images, labels = normalise(pixels[: options.images]), labels[: options.images]
    print("| model | norm | " + " | ".join(f"s = {spread:g}" for spread in SPREADS) + " |")
    print("|---|---|" + "---|" * len(SPREADS))
    for name in ("resnet-8", "resnet-20"):
        for norm, change in NORMS.items():
            torch.manual_seed(0)
            model = change(MODELS[name](channels=3, num_classes=10))
            cells = [turned(model, images, labels, spread) for spread in SPREADS]
            print(f"| `{name}` | {norm} | " + " | ".join(f"{a:.2f}, {b:.3f}" for a, b in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
