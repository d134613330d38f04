"""The names of De et al. 2022: their wide ResNets in Haiku (``jax_privacy``), as those of the models ``wrn-...-gain``.

    wide_res_net/First_conv            w (kh, kw, c, m), gain (m,), bias (m,)      stem
    wide_res_net/Block_1Conv_0_1       the same: group 1, block 0, convolution 1   group1.0.conv2
    wide_res_net/Block_1_norm_0_1      scale (m,), offset (m,)                     group1.0.activate2.1
    wide_res_net/Block_1_skip_conv, Block_1_skip_norm                              group1.0.shortcut
    wide_res_net/Final_norm, Softmax   the latter w (n, classes), b                activate.1, classifier
The forward pass is theirs, too: see ``simulations.models.wide_resnet``.
"""

import re
from collections.abc import Callable, Iterable

import numpy as np

from simulations.convert.arrays import Arrays

MODULES: tuple[tuple[str, str, Callable[[re.Match[str]], str]], ...] = (
    ("First_conv", "conv", lambda m: "stem"),
    (r"Block_(\d+)Conv_(\d+)_(\d+)", "conv", lambda m: f"group{m[1]}.{m[2]}.conv{int(m[3]) + 1}"),
    (r"Block_(\d+)_norm_(\d+)_(\d+)", "norm", lambda m: f"group{m[1]}.{m[2]}.activate{int(m[3]) + 1}.1"),
    (r"Block_(\d+)_skip_conv", "conv", lambda m: f"group{m[1]}.0.shortcut.1"),
    (r"Block_(\d+)_skip_norm", "norm", lambda m: f"group{m[1]}.0.shortcut.0.1"),
    ("Final_norm", "norm", lambda m: "activate.1"),
    ("Softmax", "linear", lambda m: "classifier"),
)
"""Their module, its kind, and our module."""
LEAVES = {
    "conv": {"w": "conv.weight", "gain": "gain", "bias": "bias"},
    "norm": {"scale": "weight", "offset": "bias"},
    "linear": {"w": "weight", "b": "bias"},
}
AXES = {"conv": (3, 2, 0, 1), "linear": (1, 0)}
"""Their axes of ``w`` in our order: (kh, kw, c, m) to (m, c, kh, kw), (n, m) to (m, n)."""
FIRST, NETWORK = "First_conv", ("wide_res_net", "~")


def is_layout(names: Iterable[str]) -> bool:
    """Whether these are names of such a checkpoint."""
    return any(FIRST in name.split("/") for name in names)


def renamed(arrays: Arrays, part: str) -> dict[str, np.ndarray]:
    """Weights under our names. ``part``: the key of the parameters, where the checkpoint has several trees.

    Raises ValueError for a part that is not there, and for parameters of another network.
    """
    found: dict[str, np.ndarray] = {}
    for name, array in _tree(arrays, part).items():
        module, leaf = name.split("/")[-2:]
        kind, ours = _our_module(module)
        if leaf not in LEAVES.get(kind, ()) or (leaf == "w" and array.ndim != len(AXES[kind])):
            raise ValueError(
                f"{name} {array.shape} is no parameter of De et al.'s wide ResNet with weight standardisation, group "
                "norm and skip paths: their other networks are not covered"
            )
        found[f"{ours}.{LEAVES[kind][leaf]}"] = array.transpose(AXES[kind]) if leaf == "w" else array.reshape(-1)
    return found


def model_name(weights: Arrays) -> str:
    """``wrn-DEPTH-WIDTH-gain``, from the number of blocks and of channels."""
    blocks = sum(re.fullmatch(r"group1\.\d+\.conv1\.gain", name) is not None for name in weights)
    return f"wrn-{6 * blocks + 4}-{len(weights.get('group1.0.conv1.gain', ())) // 16}-gain"


def _tree(arrays: Arrays, part: str) -> dict[str, np.ndarray]:
    """The arrays of the tree ``part``, or of the only one if it has no key of its own."""
    trees: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        above = "/".join(key for key in name.split("/")[:-2] if key not in NETWORK)
        trees.setdefault(above, {})[name] = array
    networks = [above for above, tree in trees.items() if is_layout(tree)]
    chosen = "" if networks == [""] else part
    if chosen not in networks:
        raise ValueError(f"the checkpoint has no parameters under {part!r}: give --part, one of {', '.join(networks)}")
    return trees[chosen]


def _our_module(module: str) -> tuple[str, str]:
    for pattern, kind, name in MODULES:
        match = re.fullmatch(pattern, module)
        if match is not None:
            return kind, name(match)
    return "", ""
