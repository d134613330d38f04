"""``fedlsg convert``: a checkpoint that others trained becomes a folder that a run starts from."""

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from fedlsg.user_code import DATA
from fedlsg.version import version
from simulations.convert import de_et_al, residual
from simulations.convert.arrays import Arrays, digest_of_all, read_arrays
from simulations.models import vision
from simulations.models.pretrained import check_fit
from simulations.models.wide_resnet import wide_resnet
from simulations.rundir.files.atomic import check_writable
from simulations.rundir.model_files import write_model

FORMAT = 1
STEM = {"de-et-al": "stem.conv.weight", "torchvision": "stem.0.weight"}
"""The first convolution by layout."""
SIDE = {"de-et-al": 32, "torchvision": 224}
"""A side of images that has all models of a layout."""


@dataclass(frozen=True, kw_only=True)
class Converted:
    """Weights under the names of one of our models. ``layout``: whose names they had."""

    layout: str
    model: str
    weights: dict[str, Tensor]

    @property
    def channels(self) -> int:
        """Of the images."""
        return int(self.weights[STEM[self.layout]].shape[1])

    @property
    def classes(self) -> int:
        return len(self.weights["classifier.bias"])


def convert_command(source: str, console: Console, *, part: str, trained_on: str | None, out: str | None) -> None:
    """Read, rename, compare with the model, write the folder whole or not at all, and print how a run starts from it.

    Raises ValueError for an existing folder, a layout that is not known, and weights that do not fit their model;
    what ``read_arrays`` raises.
    """
    path = Path(source).expanduser()
    folder = Path(out or f"pretrained/{path.stem}").expanduser().resolve()
    if folder.exists():
        raise ValueError(f"{folder} exists: nothing is overwritten, choose another --out")
    check_writable(folder)
    found = converted(read_arrays(path), part=part, source=source)
    facts: dict[str, Any] = {
        "format": FORMAT,
        "fedlsg": version(),
        "model": found.model,
        "converted_from": {"file": path.name, "sha256": digest_of_all(path), "layout": found.layout},
    }
    if trained_on is not None:
        facts["pretrained_on"] = {"source": f"{DATA}{trained_on}"}
    write(folder, found.weights, facts)
    values = sum(w.numel() for w in found.weights.values())
    say(
        console,
        f"{found.model} with the weights of {path.name} ({found.layout}): {values:,} values, {found.channels} "
        f"channels, {found.classes:,} classes",
    )
    if found.model not in vision(found.channels, SIDE[found.layout], found.classes):
        say(
            console, "no model of fedlsg run has this size: build it by simulations.models.wide_resnet in your workload"
        )
        return
    say(console, f"start from it: fedlsg run WORKLOAD -c model={found.model} -c {shlex.quote(f'pretrained={folder}')}")


def converted(arrays: Arrays, *, part: str = "params", source: str = "the file") -> Converted:
    """The weights of a checkpoint as those of the model that has their sizes.

    Guarantee: every parameter of the model is there, with its shape, finite and in float32, and nothing else.
    Raises ValueError otherwise.
    """
    if de_et_al.is_layout(arrays):
        layout, named = "de-et-al", de_et_al.renamed(arrays, part)
        model = de_et_al.model_name(named)
    elif residual.is_layout(arrays):
        layout, named = "torchvision", residual.renamed(arrays)
        model = residual.model_name(named)
    else:
        some = ", ".join(list(arrays)[:3])
        raise ValueError(
            f"{source}: names such as {some} are of no layout that is known: expected those of De et al.'s wide "
            "ResNets (wide_res_net/First_conv/w) or of a ResNet of torchvision or timm (layer1.0.conv1.weight)"
        )
    found = Converted(layout=layout, model=model, weights={name: _tensor(name, a) for name, a in named.items()})
    _check(found, source)
    return found


def _tensor(name: str, array: np.ndarray) -> Tensor:
    if array.dtype.kind != "f":
        raise ValueError(f"expected real numbers in {name}, got {array.dtype}: save them as float32")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _check(found: Converted, source: str) -> None:
    """Raise ValueError unless the weights are exactly those of the model."""
    if "classifier.bias" not in found.weights or STEM[found.layout] not in found.weights:
        raise ValueError(f"{source} has no classifier or no first convolution: expected a whole checkpoint")
    with torch.device("meta"):
        model = _build(found)
    check_fit(model.state_dict(), found.weights, source)


def _build(found: Converted) -> torch.nn.Module:
    if found.layout == "de-et-al":
        _, depth, width, _ = found.model.split("-")
        return wide_resnet(int(depth), int(width), channels=found.channels, num_classes=found.classes, form="gain")
    return vision(found.channels, SIDE[found.layout], found.classes)[found.model]()


def say(console: Console, line: str) -> None:
    """Print a line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def write(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """model.safetensors and config.json in a new folder, whole or not at all."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        write_model(partial, tensors, facts)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
