"""A workload on public features: the same examples, encoded once, with small heads as models."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.carriers.probe.carrier import Draw
from fedlsg.config.choices import choose
from fedlsg.simulations.models import vision
from fedlsg.simulations.models.patches import PatchSettings
from fedlsg.simulations.models.small import DEFAULT_WIDTH, heads
from fedlsg.simulations.workloads.base import (
    LoadedWorkload,
    Options,
    Progress,
    Read,
    Request,
    silent,
)
from fedlsg.simulations.workloads.base.cache import cache_folder
from fedlsg.simulations.workloads.base.public_inputs import LEAST_SIDE, Pixels, image_draws
from fedlsg.simulations.workloads.base.split import Split
from fedlsg.simulations.workloads.features.axes import on_axes
from fedlsg.simulations.workloads.features.encode import (
    ALONE,
    Encoder,
    decorrelated,
    encode_later,
    encode_rows,
    encode_split,
)
from fedlsg.simulations.workloads.features.encoders import (
    PATCHES,
    SCATTERING,
    image_encoder,
    patches_encoder,
    text_encoder,
)

LAST = "commit 569be536 of November 2026 still has it"
"""Where a part of ``feature_norm`` is that was removed."""


def with_features(raw: LoadedWorkload, request: Request) -> LoadedWorkload:
    """The workload whose inputs are features of the inputs of ``raw``; loss and partitions stay.

    Features are kept in the cache folder of the request. Those of a deployed client's own rows are
    in the client's folder.
    Raises ValueError for a workload whose inputs are neither images nor tokens, for one without
    classes, and for an unknown setting; and the errors of finding the encoder.
    """
    options, say = request.options, request.progress
    assert options.features is not None, "called for features alone"
    classes = raw.classes(f"features={options.features}")
    cache = cache_folder(request.cache_dir)
    say(f"features={options.features}: finding the encoder")
    encoder = _encoder(raw, options, classes, cache, say)
    source = _as_pixels(raw, encoder) if encoder.pixels else raw
    encoder = _normalise(encoder, source.synthetic, norm_of(options), cache, say)
    if (count := options.feature_axes) is not None:
        draw = next(iter(source.synthetic.values()))
        encoder = on_axes(encoder, draw, count, cache=cache, progress=say)

    def encode(name: str, split: Split) -> Split:
        if name == "train" and request.few_rows:
            return encode_later(split, encoder)
        return encode_split(split, encoder, cache=cache, progress=say, what=name)

    encoded = source.with_splits(encode)
    shape = tuple(encoded.test.batch(torch.tensor([0]))[0].shape[1:])
    pixels, synthetic = _synthetic(source, encoder)
    read = source.read
    return replace(
        encoded,
        models=heads(shape, classes, width=options.head_width or DEFAULT_WIDTH),
        classifier="classifier",
        augment=None,
        features={
            "name": encoder.name,
            "values": prod(shape),
            "norm": norm_of(options),
            **({} if options.feature_axes is None else {"axes": options.feature_axes}),
            "digest": hashlib.sha256(encoder.digest.encode()).hexdigest(),
        },
        read=None if read is None else partial(_own_rows, read, source.test.prepare, encoder),
        pixels=pixels,
        synthetic=synthetic,
        raw=raw,
        encode=None if encoder.graph is None else encoder.with_graph,
        left_out=(),
    )


def _synthetic(raw: LoadedWorkload, encoder: Encoder) -> tuple[Pixels | None, Mapping[str, Draw]]:
    """How stored images become features, and the draws of ``raw`` as draws of features.

    The first is None for a workload that stores no images.
    """
    draws = {name: partial(_encoded_draw, draw, encoder) for name, draw in raw.synthetic.items()}
    if raw.pixels is None:
        return None, draws
    return replace(raw.pixels, prepare=partial(_encode_stored, raw.pixels.prepare, encoder)), draws


def _encode_stored(prepare: Callable[[Any], Any], encoder: Encoder, stored: np.ndarray) -> Tensor:
    """Features of stored images."""
    return encode_rows(prepare(stored), encoder)


def _encoded_draw(draw: Draw, encoder: Encoder, count: int, generator: torch.Generator) -> Any:
    """Features of drawn inputs; with their targets, if the draw gives some."""
    result = draw(count, generator)
    if isinstance(result, tuple):
        return (encode_rows(result[0], encoder), *result[1:])
    return encode_rows(result, encoder)


def _own_rows(
    read: Read, prepare: Callable[[Any], Any], encoder: Encoder, path: Path, cache: Path
) -> Split:
    """A deployed client's own rows, encoded.

    prepare: that of the public rows.
    cache: the client's own folder.
    """
    rows = read(path, cache)
    rows = replace(rows, prepare=prepare) if encoder.pixels else rows
    return encode_split(rows, encoder, cache=cache, progress=silent, what="data")


def norm_of(options: Options) -> str:
    """``feature_norm``, or its default.

    With ``feature_axes`` the default of patches is "none", because axes decorrelate and scale.
    """
    defaults = {SCATTERING: "group", PATCHES: "none" if options.feature_axes else "leaves+unit"}
    return options.feature_norm or defaults.get(str(options.features), "none")


def _encoder(
    raw: LoadedWorkload, options: Options, classes: int, cache: Path, say: Progress
) -> Encoder:
    """The encoder that ``features`` names, for the inputs of this workload."""
    features = str(options.features)
    inputs: Any = raw.test.batch(torch.tensor([0]))[0]
    if isinstance(inputs, dict) and "input_ids" in inputs:
        return text_encoder(features)
    if isinstance(inputs, Tensor) and inputs.ndim == 4:
        channels, height, width = inputs.shape[1:]
        shape = (channels, height, width)
        if features == PATCHES:
            values = {
                name: getattr(options, f"patch_{name}")
                for name in ("filters", "size", "places", "scales")
            }
            given = {name: value for name, value in values.items() if value is not None}
            return patches_encoder(shape, PatchSettings(**given), cache=cache, progress=say)
        models = raw.models
        if height == width and height >= LEAST_SIDE:
            models = {**vision(channels, height, classes), **models}
        return image_encoder(features, shape, models)
    form = f"a dict of {', '.join(inputs)}" if isinstance(inputs, dict) else "tensors "
    if isinstance(inputs, Tensor):
        form += f"{tuple(inputs.shape)}"
    raise ValueError(
        f"features={features} needs images (B, channels, height, width) or tokens (input_ids), and "
        f"the inputs of {raw.name} are {form}: leave features out"
    )


def _as_pixels(raw: LoadedWorkload, encoder: Encoder) -> LoadedWorkload:
    """The workload whose inputs are images in 0..1, without the normalisation of its models."""
    if raw.pixels is None:
        raise ValueError(
            f"features={encoder.name} reads images of 0..255 or 0..1, and {raw.name} stores none: "
            "give them"
        )
    pixels = replace(raw.pixels, prepare=raw.pixels.images)
    stored = raw.with_splits(lambda _, split: replace(split, prepare=pixels.prepare))
    return replace(stored, synthetic=image_draws(pixels), pixels=pixels)


def _normalise(
    encoder: Encoder, synthetic: Mapping[str, Draw], norm: str, cache: Path, say: Progress
) -> Encoder:
    """The encoder with the parts of ``norm``, from left to right.

    A part is in ALONE, or is the name of synthetic inputs whose statistics are used.
    """
    for part in () if norm == "none" else norm.split("+"):
        if part == "mirror":
            raise ValueError(
                f"feature_norm={norm}: mirror gained nothing and was removed: leave it out; {LAST}"
            )
        choose("part of feature_norm", part, {**ALONE, **synthetic})
        if part in ALONE:
            encoder = ALONE[part](encoder)
        else:
            encoder = decorrelated(encoder, synthetic[part], cache=cache, progress=say)
    return encoder
