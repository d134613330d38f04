"""Weights that others trained become a folder that a run starts from: De et al.'s wide ResNets,
ResNets of timm.

    python convert_weights.py WRN_28_10_IMAGENET32.dill --out imagenet32
    fedlsg run --preset dp-ssgd-cifar100-eps1 -c pretrained=imagenet32

Nothing in a file is executed. ``pickle.load`` calls whatever a file names; the reader here knows
the names of what builds arrays and mappings, refuses every other name, and imports nothing. None of
numpy's own constructors is called: ``numpy.ndarray`` makes an array of objects over bytes of the
file, which are then taken as addresses, and a type can be told a size that is not its own.
Functions of this file stand for them.

De et al. 2022 have Haiku's names and axes, (kh, kw, c, m) and (n, m): ``MODULES``; torchvision and
timm: ``TIMM``.
"""

import argparse
import math
import pickle
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.bounded import check_unpacked
from fedlsg.simulations.models import vision
from fedlsg.simulations.models.pretrained import SUFFIXES, check_fit, file_digest, read_weights
from fedlsg.simulations.models.resnet import wide_resnet
from fedlsg.simulations.storage.updates import write_model
from fedlsg.user_code import DATA
from fedlsg.user_code.digest import version

Arrays = Mapping[str, np.ndarray]
PICKLES = (".dill", ".pkl", ".pickle")
NUMBERS = re.compile(r"\?|[biufcSU]\d+")
"""Types of values that hold no references: numbers and texts."""


class RefusedError(ValueError):
    """A pickle names something else than arrays and mappings."""


class Restricted(pickle.Unpickler):
    """An unpickler that finds the names of ``ALLOWED`` and no others."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise RefusedError(
                f"the pickle names {module}.{name}, which may run code: expected numpy arrays in "
                "dictionaries; save them by numpy.savez where you trust the file, and convert that"
            )
        return ALLOWED[module, name]


class Kind:
    """A type of values, as the pickle describes it. The pickle's next instruction gives the order
    of bytes.
    """

    def __init__(self, name: object, align: Any = False, copy: Any = False) -> None:
        self._name, self._order = str(name), "="

    def __setstate__(self, state: Any) -> None:
        self._order = str(state[1])
        if tuple(state[2:5]) != (None, None, None):  # an array as a value, names of fields, fields
            self._name = "a type with fields"

    @property
    def dtype(self) -> np.dtype[Any]:
        if not NUMBERS.fullmatch(self._name) or self._order not in ("<", ">", "=", "|"):
            raise RefusedError(f"the pickle has an array of {self._name[:40]}: expected numbers")
        return np.dtype(self._name).newbyteorder("=" if self._order == "|" else self._order)  # type: ignore[arg-type]


class Made:
    """An array of the pickle, empty until the next instruction gives its values."""

    def __init__(self, array: np.ndarray | None = None) -> None:
        self.array = np.zeros(0) if array is None else array

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        self.array = of_bytes(raw, kind, shape, "F" if fortran else "C")


def of_bytes(raw: Any, kind: Any, shape: Any, order: Any) -> np.ndarray:
    """The array of these bytes. Raises RefusedError, or ValueError where there are too few bytes or
    too many.
    """
    if not isinstance(kind, Kind):
        raise RefusedError("the pickle has an array without a type of values")
    dtype, sizes = kind.dtype, [shape] if isinstance(shape, int) else list(shape)
    if not isinstance(raw, bytes | bytearray) or not all(
        type(size) is int and size >= 0 for size in sizes
    ):
        raise RefusedError(
            f"the pickle has an array of {dtype} whose values are no bytes, or without a shape"
        )
    if dtype.itemsize * math.prod(sizes) != len(raw):
        raise ValueError(f"{len(raw)} bytes for an array of {dtype} with shape {tuple(sizes)}")
    # a copy: bytes cannot be written to
    flat = np.frombuffer(raw, dtype).copy() if raw else np.zeros(0, dtype)
    return flat.reshape(sizes, order="F" if order == "F" else "C")


def latin1(text: str, encoding: str) -> bytes:
    """Bytes as pickles of protocol 2 write them."""
    if encoding != "latin1":
        raise RefusedError(f"the pickle encodes text as {encoding!r}: expected 'latin1'")
    return text.encode("latin1")


def reconstruct(of: Any, shape: Any, code: Any) -> Made:
    """The start of an array, in numpy's form: its values follow."""
    return Made()


def from_buffer(raw: Any, kind: Any, shape: Any, order: Any, axes: Any = None) -> Made:
    """An array as pickles of protocol 5 write it; ``axes``: their order, where they are permuted in
    memory.
    """
    array = of_bytes(raw, kind, shape, order)
    return Made(array if axes is None else array.transpose(axes))


def array_of(function: Any, args: tuple[Any, ...], state: Any, about: Any = None) -> Made:
    """The numpy array that JAX or dill wraps."""
    if function is not reconstruct:
        raise RefusedError("the pickle builds an array in another form than numpy's")
    array = Made()
    array.__setstate__(state)
    return array


NUMPY: Mapping[tuple[str, str], Any] = {
    ("multiarray", "_reconstruct"): reconstruct,
    ("multiarray", "scalar"): lambda kind, raw: of_bytes(raw, kind, (), "C").item(),
    ("numeric", "_frombuffer"): from_buffer,
}
ALLOWED: Mapping[tuple[str, str], Any] = {
    **{
        (f"{core}.{module}", name): f
        for core in ("numpy.core", "numpy._core")
        for (module, name), f in NUMPY.items()
    },
    **{
        ("haiku._src.data_structures", name): dict
        for name in ("FlatMapping", "FlatMap", "frozendict")
    },
    ("numpy", "ndarray"): "numpy.ndarray",  # it is named, and never called
    ("numpy", "dtype"): Kind,
    ("collections", "OrderedDict"): dict,
    ("_codecs", "encode"): latin1,
    ("__builtin__", "bytes"): lambda: b"",
    ("dill._dill", "_create_array"): array_of,
    ("jax._src.array", "_reconstruct_array"): array_of,
    ("jax._src.device_array", "reconstruct_device_array"): array_of,
}
"""What stands for each name of a pickle."""


def read_arrays(source: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by the path of their keys. Raises ValueError for a file that cannot be
    read, or has none.
    """
    try:
        if source.suffix in PICKLES:
            with source.open("rb") as stream:
                found = leaves(Restricted(stream).load())
        elif source.suffix == ".npz":
            check_unpacked(source, 2**26 + 16 * source.stat().st_size)
            with np.load(source, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files if arrays[name].ndim}
        elif source.suffix in SUFFIXES:
            return {name: tensor.float().numpy() for name, tensor in read_weights(source).items()}
        else:
            raise RefusedError(
                f"expected a file that ends on {', '.join((*PICKLES, '.npz', *SUFFIXES))}"
            )
    except RefusedError as error:
        raise ValueError(f"{source}: {error}") from None
    except Exception as error:  # a damaged file raises whatever its next instruction does
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"cannot read {source} as arrays ({reason})") from error
    if not found:
        raise ValueError(f"{source} holds no arrays")
    return found


def leaves(tree: Any, path: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Arrays of at least one dimension. Counters, lists of an optimizer's state and texts are left
    out.
    """
    if isinstance(tree, Mapping):
        return {
            name: a
            for key, value in tree.items()
            for name, a in leaves(value, (*path, str(key))).items()
        }
    return {"/".join(path): tree.array} if isinstance(tree, Made) and tree.array.ndim else {}


MODULES = (
    ("First_conv", "conv", "stem"),
    *((rf"Block_(\d+)Conv_(\d+)_{k}", "conv", rf"group\1.\2.conv{k + 1}") for k in (0, 1)),
    *((rf"Block_(\d+)_norm_(\d+)_{k}", "norm", rf"group\1.\2.activate{k + 1}.1") for k in (0, 1)),
    (r"Block_(\d+)_skip_conv", "conv", r"group\1.0.shortcut.1"),
    (r"Block_(\d+)_skip_norm", "norm", r"group\1.0.shortcut.0.1"),
    ("Final_norm", "norm", "activate.1"),
    ("Softmax", "linear", "classifier"),
)
"""A module of De et al., its kind, and our module."""
LEAVES = {
    "conv": {"w": "conv.weight", "gain": "gain", "bias": "bias"},
    "norm": {"scale": "weight", "offset": "bias"},
    "linear": {"w": "weight", "b": "bias"},
}
AXES = {"conv": (3, 2, 0, 1), "linear": (1, 0)}
TIMM = (
    (r"conv1\.", "stem.0."),
    (r"bn1\.", "stem.1."),
    (r"layer(\d+)\.(\d+)\.bn(\d+)\.", r"stage\1.\2.norm\3."),
    (r"layer(\d+)\.(\d+)\.downsample\.", r"stage\1.\2.shortcut."),
    (r"layer(\d+)\.", r"stage\1."),
    (r"fc\.", "classifier."),
)


def converted(
    arrays: Arrays, *, part: str = "params", source: str = "the file"
) -> tuple[str, dict[str, Tensor]]:
    """The model that has the sizes of a checkpoint, and its weights under the model's names.

    Guarantee: every parameter of the model is there, with its shape, finite and in float32, and
    nothing else.
    Raises ValueError otherwise.
    """
    if any("First_conv" in name.split("/") for name in arrays):
        named = of_de_et_al(arrays, part)
        blocks = sum(re.fullmatch(r"group1\.\d+\.conv1\.gain", name) is not None for name in named)
        depth, width = 6 * blocks + 4, len(named.get("group1.0.conv1.gain", ())) // 16
        model, stem = f"wrn-{depth}-{width}-gain", "stem.conv.weight"
    elif {"conv1.weight", "layer1.0.conv1.weight"} <= arrays.keys():
        named = of_timm(arrays)
        stages = [
            len({name.split(".")[1] for name in named if name.startswith(f"stage{k}.")})
            for k in range(1, 5)
        ]
        if stages != [3, 4, 6, 3]:
            raise ValueError(
                f"a ResNet with stages of {stages} blocks is none of resnet-34, resnet-50"
            )
        model = "resnet-50" if "stage1.0.conv3.weight" in named else "resnet-34"
        stem = "stem.0.weight"
    else:
        raise ValueError(
            f"{source}: names such as {', '.join(list(arrays)[:3])} are of no layout that is known"
        )
    if "classifier.bias" not in named or stem not in named:
        raise ValueError(
            f"{source} has no classifier or no first convolution: expected a whole checkpoint"
        )
    for name, array in named.items():
        if array.dtype.kind != "f":
            raise ValueError(
                f"expected real numbers in {name}, got {array.dtype}: save them as float32"
            )
    weights = {
        name: torch.from_numpy(np.ascontiguousarray(a, dtype=np.float32))
        for name, a in named.items()
    }
    channels, classes = weights[stem].shape[1], len(weights["classifier.bias"])
    with torch.device("meta"):
        if model.startswith("wrn"):
            ours = wide_resnet(depth, width, channels=channels, num_classes=classes, form="gain")
        else:
            ours = vision(channels, 224, classes)[model]()
    check_fit(ours.state_dict(), weights, source)
    return model, weights


def of_de_et_al(arrays: Arrays, part: str) -> dict[str, np.ndarray]:
    """Weights under our names, of the tree ``part`` where the checkpoint has several, such as
    averages.
    """
    trees: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        above = "/".join(key for key in name.split("/")[:-2] if key not in ("wide_res_net", "~"))
        trees.setdefault(above, {})[name] = array
    networks = [
        above
        for above, tree in trees.items()
        if any("First_conv" in name.split("/") for name in tree)
    ]
    chosen = "" if networks == [""] else part
    if chosen not in networks:
        raise ValueError(
            f"the checkpoint has no parameters under {part!r}: give --part, one of "
            f"{', '.join(networks)}"
        )
    found: dict[str, np.ndarray] = {}
    for name, array in trees[chosen].items():
        module, leaf = name.split("/")[-2:]
        matches = [
            (kind, re.sub(p, ours, module)) for p, kind, ours in MODULES if re.fullmatch(p, module)
        ]
        kind, ours = matches[0] if matches else ("", "")
        if leaf not in LEAVES.get(kind, ()) or (leaf == "w" and array.ndim != len(AXES[kind])):
            raise ValueError(
                f"{name} {array.shape} is no parameter of De et al.'s wide ResNet with weight "
                "standardisation, group norm and skip paths: their other networks are not covered"
            )
        found[f"{ours}.{LEAVES[kind][leaf]}"] = (
            array.transpose(AXES[kind]) if leaf == "w" else array.reshape(-1)
        )
    return found


def of_timm(arrays: Arrays) -> dict[str, np.ndarray]:
    """Weights under our names: the first rule that fits a name."""
    if any(name.endswith("running_mean") for name in arrays):
        raise ValueError(
            "these weights have batch norm, which mixes examples: take group norm: timm's "
            "resnet50_gn"
        )
    rules = [(re.compile(f"^{pattern}"), ours) for pattern, ours in TIMM]
    return {
        next((p.sub(o, name) for p, o in rules if p.match(name)), name): a
        for name, a in arrays.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "source", type=Path, help=f"file: {', '.join((*PICKLES, '.npz', *SUFFIXES))}"
    )
    parser.add_argument(
        "--part", default="params", help="key of the weights in a checkpoint of De et al."
    )
    parser.add_argument(
        "--trained-on", help="workload that the weights have seen: a run on it refuses them"
    )
    parser.add_argument("--out", type=Path, required=True, help="new folder")
    given = parser.parse_args()
    if given.out.exists():
        sys.exit(f"{given.out} exists: nothing is overwritten, choose another --out")
    try:
        model, weights = converted(
            read_arrays(given.source), part=given.part, source=str(given.source)
        )
    except ValueError as error:
        sys.exit(str(error))
    facts = {
        "fedlsg": version(),
        "model": model,
        "converted_from": {"file": given.source.name, "sha256": file_digest(given.source)},
        **(
            {}
            if given.trained_on is None
            else {"pretrained_on": {"source": f"{DATA}{given.trained_on}"}}
        ),
    }
    partial = given.out.with_name(f".{given.out.name}.partial")
    partial.mkdir(parents=True)
    try:
        write_model(partial, weights, facts)
        partial.rename(given.out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(
        f"{model}: {sum(w.numel() for w in weights.values()):,} values, "
        f"{len(weights['classifier.bias']):,} classes"
    )
    print(f"start from it: fedlsg run WORKLOAD -c model={model} -c pretrained={given.out}")


if __name__ == "__main__":
    main()
