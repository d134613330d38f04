"""Reference of workloads, models and codecs."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from docs._sphinx.reference.markdown import page, table
from fedlsg.payload import all_codecs
from fedlsg.payload.codecs import summaries
from fedlsg.simulations import models as vision_models
from fedlsg.simulations import workloads as sets
from fedlsg.simulations.models.small import digits_conv, digits_mlp

PRESET = (
    "clients",
    "rounds",
    "sample_rate",
    "optimizer",
    "learning_rate",
    "clip_norm",
    "epsilon",
    "delta",
    "rank",
)
SHAPES = (
    ("digits", 1, 8),
    ("fashion-mnist", 1, 28),
    ("cifar10, cifar100, svhn", 3, 32),
    ("64 x 64 pixels", 3, 64),
)
CLASSES = 10
DIGITS: Mapping[str, vision_models.Builder] = {"mlp": digits_mlp, "conv": digits_conv}


def workloads() -> str:
    """Every built-in workload, with its preset."""
    names = [name for name in sets.names() if sets.own(name) is None]
    rows = ((f"`{name}`", sets.summary(name)) for name in names)
    head = ("workload", *PRESET)
    presets = (
        (f"`{name}`", *(_text(sets.presets(name)[0].get(key)) for key in PRESET)) for name in names
    )
    return page(
        "Workloads",
        "A workload is a data set with its models and its preset. `fedlsg run NAME` trains on it.",
        table(("workload", "what it is"), rows),
        "`digits` needs no data. Others are read from the folder that `--data-dir` or "
        "`FEDLSG_DATA` names (a mirror of the Hugging Face repositories), or from the hub with "
        "`pip install 'fedlsg[hub]'`. [Your own data](../own.md) is a workload, too.",
        "## Presets",
        "A preset is what a workload sets unless a run sets it. Some methods have other values of "
        "their own: `fedlsg settings NAME` lists them. [Settings](../settings.md) explains each "
        "one.",
        table(head, presets),
    )


def models() -> str:
    """Every built-in model for images, with its trained parameters."""
    return page(
        "Models",
        "`-c model=NAME` chooses one of the workload's models. The first one is the default. No "
        "model has a layer that mixes examples, such as BatchNorm. [Your own model](../own.md) "
        "works, too.",
        f"## Images\n\nNumber of parameters that are trained, for {CLASSES} classes.",
        table(("model", *(name for name, _, _ in SHAPES)), _image_rows()),
        "## Texts",
        "The workloads of texts take an encoder: `minilm` (6 layers, width 384), a folder in the "
        "layout of transformers, or OWNER/NAME on the hub. `-c train_layers=2` trains its top two "
        "layers and the classifier. `pip install 'fedlsg[text]'` brings what they need.",
        "## Heads on public features",
        "With [`features=`](../features.md) the model is a head: `linear`, `mlp` or `cnn`.",
    )


def _image_rows() -> Iterator[tuple[str, ...]]:
    counted = [_counted(name, channels, side) for name, channels, side in SHAPES]
    for name in dict.fromkeys(name for found in counted for name in found):
        yield f"`{name}`", *(f"{found[name]:,}" if name in found else "" for found in counted)


def _counted(name: str, channels: int, side: int) -> dict[str, int]:
    """Trained parameters of each model; nothing is allocated."""
    builders = DIGITS if name == "digits" else vision_models.vision(channels, side, CLASSES)
    with torch.device("meta"):
        built = {name: make() for name, make in builders.items()}
    return {
        name: sum(p.numel() for p in model.parameters() if p.requires_grad)
        for name, model in built.items()
    }


def codecs() -> str:
    """Every codec, with its own settings."""
    lines = summaries()
    rows = (
        (
            f"`{name}`",
            lines[name],
            "yes" if codec.goes_down else "no",
            ", ".join(f"`{s}`" for s in codec.settings),
        )
        for name, codec in all_codecs().items()
    )
    return page(
        "Codecs",
        "A codec is how the values of a payload become bytes. `--codec NAME` chooses it for what "
        "clients send, `-c downlink_codec=NAME` for sparse updates of the server. "
        "[Communication](../communication.md) has sizes, errors and what each codec is allowed "
        "with. [A codec of your own](../own-method.md) is one file.",
        table(("codec", "what it does", "for the downlink, too", "its settings"), rows),
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)
