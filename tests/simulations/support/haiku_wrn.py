"""A wide ResNet of De et al. 2022 as their checkpoint has it, and its forward pass written out on these names."""

import numpy as np

Params = dict[str, dict[str, np.ndarray]]


def made_params(seed: int, *, depth: int = 10, width: int = 1, channels: int = 3, classes: int = 5) -> Params:
    """Random parameters of every module, float32, as ``hk.transform(...).init`` names and shapes them."""
    draw = np.random.default_rng(seed)
    found: Params = {}

    def conv(name: str, before: int, after: int, kernel: int) -> None:
        w = draw.normal(0.02, 0.1, (kernel, kernel, before, after))
        found[name] = {"w": w, "gain": draw.normal(1, 0.5, after), "bias": draw.normal(0, 0.2, after)}

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
    found["Softmax"] = {"w": draw.normal(0, 0.3, (before, classes)), "b": draw.normal(0, 0.3, classes)}
    return {
        f"wide_res_net/{module}": {leaf: array.astype(np.float32) for leaf, array in leaves.items()}
        for module, leaves in found.items()
    }
