"""A wide ResNet of De et al. 2022 as their checkpoint has it, and its forward pass written out on
these names.
"""

from collections.abc import Mapping

import numpy as np

Params = dict[str, dict[str, np.ndarray]]
Array = np.ndarray


def made_params(
    seed: int, *, depth: int = 10, width: int = 1, channels: int = 3, classes: int = 5
) -> Params:
    """Random parameters of every module, float32, as ``hk.transform(...).init`` names and shapes
    them.
    """
    draw = np.random.default_rng(seed)
    found: Params = {}

    def conv(name: str, before: int, after: int, kernel: int) -> None:
        w = draw.normal(0.02, 0.1, (kernel, kernel, before, after))
        found[name] = {
            "w": w,
            "gain": draw.normal(1, 0.5, after),
            "bias": draw.normal(0, 0.2, after),
        }

    def norm(name: str, size: int) -> None:
        found[name] = {"scale": draw.normal(1, 0.3, size), "offset": draw.normal(0, 0.2, size)}

    conv("First_conv", channels, 16, 3)
    before = 16
    for group, after in enumerate((16 * width, 32 * width, 64 * width), start=1):
        for block in range((depth - 4) // 6):
            if block == 0:
                norm(f"Block_{group}_skip_norm", before)
                conv(f"Block_{group}_skip_conv", before, after, 1)
            for j, size in enumerate((before, after)):
                norm(f"Block_{group}_norm_{block}_{j}", size)
                conv(f"Block_{group}Conv_{block}_{j}", size, after, 3)
            before = after
    norm("Final_norm", before)
    found["Softmax"] = {
        "w": draw.normal(0, 0.3, (before, classes)),
        "b": draw.normal(0, 0.3, classes),
    }
    return {
        f"wide_res_net/{module}": {leaf: array.astype(np.float32) for leaf, array in leaves.items()}
        for module, leaves in found.items()
    }


def logits(params: Mapping[str, Mapping[str, Array]], x: Array) -> Array:
    """Their forward pass on images (B, h, w, c) in double precision, in numpy alone."""

    def of(name: str) -> dict[str, Array]:
        return {
            leaf: array.astype(np.float64) for leaf, array in params[f"wide_res_net/{name}"].items()
        }

    def conv(name: str, x: Array, stride: int = 1) -> Array:
        p = of(name)
        w = p["w"]
        fan_in = np.prod(w.shape[:-1])
        scale = p["gain"] / np.sqrt(np.maximum(w.var((0, 1, 2)) * fan_in, 1e-4))
        return same(x, (w - w.mean((0, 1, 2))) * scale, stride) + p["bias"]

    def norm(name: str, x: Array) -> Array:
        p = of(name)
        grouped = x.reshape(*x.shape[:3], 16, -1)
        mean, variance = (f(grouped, axis=(1, 2, 4), keepdims=True) for f in (np.mean, np.var))
        return ((grouped - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape) * p["scale"] + p[
            "offset"
        ]

    def relu(x: Array) -> Array:
        return np.maximum(x, 0)

    net = conv("First_conv", x.astype(np.float64))
    for group in (1, 2, 3):
        blocks = sum(f"wide_res_net/Block_{group}Conv_{block}_0" in params for block in range(9))
        for block in range(blocks):
            stride, skip = 2 if group > 1 and block == 0 else 1, net
            if block == 0:
                skip = conv(
                    f"Block_{group}_skip_conv", norm(f"Block_{group}_skip_norm", relu(net)), stride
                )
            for j in range(2):
                net = norm(f"Block_{group}_norm_{block}_{j}", relu(net))
                net = conv(f"Block_{group}Conv_{block}_{j}", net, stride if j == 0 else 1)
            net = net + skip
    last = of("Softmax")
    return norm("Final_norm", relu(net)).mean((1, 2)) @ last["w"] + last["b"]


def same(x: Array, kernel: Array, stride: int) -> Array:
    """A convolution with the padding "SAME" of JAX: as few zeros as there can be, the odd one at
    the end.
    """
    size = kernel.shape[0]
    out = [-(-side // stride) for side in x.shape[1:3]]
    total = [
        max((o - 1) * stride + size - side, 0) for o, side in zip(out, x.shape[1:3], strict=True)
    ]
    padded = np.pad(x, ((0, 0), *((t // 2, t - t // 2) for t in total), (0, 0)))
    y = np.zeros((len(x), *out, kernel.shape[3]))
    for i in range(size):
        for j in range(size):
            seen = padded[
                :,
                i : i + stride * (out[0] - 1) + 1 : stride,
                j : j + stride * (out[1] - 1) + 1 : stride,
            ]
            y += seen @ kernel[i, j]
    return y
