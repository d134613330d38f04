"""``features``: the public, frozen encoder that a name or a path stands for.

patches      filters from patches of synthetic images (``fedlsg.simulations.models.patches``)
scattering   wavelet filters, for images (``fedlsg.simulations.models.scattering``)
PATH         a folder with model.safetensors and config.json, as every run of fedlsg leaves it
MODEL        a model of transformers: a short name, an absolute folder, or OWNER/NAME on the hub
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg import bounded
from fedlsg.config.choices import choose
from fedlsg.simulations.models import patches, scattering
from fedlsg.simulations.models.encoder import (
    TextClassifier,
    build_encoder,
    load_body,
    sentence_encoder,
)
from fedlsg.simulations.models.encoder_source import (
    NAMES,
    EncoderSource,
    find_encoder,
    load_config,
    model_folder,
)
from fedlsg.simulations.models.patches import PatchSettings
from fedlsg.simulations.models.pretrained import CLASSIFIER, load_pretrained, read_weights
from fedlsg.simulations.workloads.base import Progress
from fedlsg.simulations.workloads.base.cache import digest_files, load_or_build
from fedlsg.simulations.workloads.base.split import Inputs
from fedlsg.simulations.workloads.features.encode import Encoder, digest_arrays

PATCHES, SCATTERING = "patches", "scattering"
BUILT_IN = (PATCHES, SCATTERING, *NAMES)
"""Names of features that come with fedlsg: no folder of such a name hides them."""
"""Names of encoders without a model."""
WEIGHTS, FACTS = "model.safetensors", "config.json"
"""Files of a model that fedlsg wrote."""
GONE = "random-process"
"""An encoder that was removed."""
Builders = Mapping[str, Callable[[], nn.Module]]
"""Functions that build models, by the names of the models."""
HALF = 0.5
"""Mean and standard deviation of each channel of a vision model whose folder gives none."""
DEFAULT_SIDE = 224
"""Pixels on a side for a vision model whose folder gives none."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A model that fedlsg wrote: its folder, and the contents of config.json."""

    folder: Path
    facts: Mapping[str, Any]

    @property
    def weights(self) -> Path:
        """The file of its weights."""
        return self.folder / WEIGHTS

    @property
    def text(self) -> EncoderSource:
        """The encoder of a text model, as its run named it."""
        return find_encoder(
            str(self.facts["model"]), self.facts.get("options", {}).get("pretrained")
        )


def written(features: str) -> Written | None:
    """The model that fedlsg wrote at a path; None for any other name, and for a built-in one.

    Raises ValueError for a config.json that cannot be read.
    """
    if features in BUILT_IN:
        return None
    folder = Path(features).expanduser()
    folder = folder.parent if folder.name == WEIGHTS else folder
    if not ((folder / WEIGHTS).is_file() and (folder / FACTS).is_file()):
        return None
    try:
        facts = bounded.read_json(folder / FACTS)
    except (OSError, ValueError) as error:
        raise ValueError(f"features={features}: cannot read {folder / FACTS} ({error})") from error
    if not isinstance(facts, dict) or "fedlsg" not in facts:
        return None
    return Written(folder=folder, facts=facts)


def text_source(features: str) -> EncoderSource:
    """The encoder whose tokenizer prepares texts for ``features``.

    Raises ValueError for an encoder of images; and the errors of finding the encoder.
    """
    if features in (PATCHES, SCATTERING):
        raise ValueError(
            f"features={features} is for images, and these are texts: give features=minilm, or "
            "another"
        )
    model = written(features)
    return _transformers_source(features) if model is None else model.text


def _transformers_source(features: str) -> EncoderSource:
    """A model of transformers. Raises ValueError, listing the names, for a misspelt one."""
    if features == GONE:
        raise ValueError(
            f"features={GONE} and fedlsg pretrain went, as they gained nothing: features=PATH "
            "takes the folder that they wrote; commit 293cb648 of November 2026 still runs them"
        )
    if "/" not in features and not features.startswith(("~", ".")):
        known = (PATCHES, SCATTERING, *NAMES, "OWNER/NAME on the hub", "/an/absolute/folder")
        choose("features", features, dict.fromkeys(known))
    return find_encoder(features, None)


def text_encoder(features: str) -> Encoder:
    """The encoder of texts: tokens to one vector for each text.

    The vector is by the pooling that the model names, or the mean over its tokens. A model that
    fedlsg wrote gives the inputs of its classifier.
    """
    own, source = written(features), text_source(features)
    if own is None:
        model = sentence_encoder(source)
        digest = folder_digest(source)
    else:
        model = build_encoder(source, num_classes=_classes(own))
        load_pretrained(model, str(own.weights))
        model.classifier = nn.Identity()
        digest = digest_files([own.weights], salt=folder_digest(source))
    return Encoder(
        name=Path(features).name,
        digest=f"text {digest}",
        encode=partial(_encode_text, model.eval()),
    )


def image_encoder(features: str, shape: tuple[int, int, int], models: Builders) -> Encoder:
    """The encoder of images (channels, height, width).

    models: those of the workload, and any other that reads such images, with a layer named
        ``classifier``.
    Raises ValueError for images that it cannot read; and the errors of finding a model.
    """
    if features == SCATTERING:
        return _scattering(shape)
    own = written(features)
    if own is not None:
        return _written_vision(own, own.folder.name, shape, models)
    return _transformers_vision(_transformers_source(features))


def patches_encoder(
    shape: tuple[int, int, int], settings: PatchSettings, *, cache: Path, progress: Progress
) -> Encoder:
    """The encoder of ``features=patches``; its filters are kept in the cache folder.

    Raises ValueError for images that are too small, and for too many filters.
    """
    settings.check(shape)
    code = hashlib.sha256(Path(patches.__file__).read_bytes()).hexdigest()
    key = hashlib.sha256(f"{shape} {settings} {torch.__version__} {code}".encode()).hexdigest()[:32]

    def build() -> Mapping[str, np.ndarray]:
        progress("filters of features=patches, from synthetic images; they are kept for later runs")
        return patches.patch_filters(shape, settings)

    arrays = load_or_build(cache, f"patches-{key}", build, progress=progress)
    encode = patches.Patches(arrays, settings)
    return Encoder(
        name=PATCHES,
        digest=digest_arrays(arrays, f"patches {settings} {code}"),
        encode=encode,
        pixels=True,
        graph=lambda images: torch.stack([encode.of(image) for image in images]),
    )


def _scattering(shape: tuple[int, int, int]) -> Encoder:
    """The encoder of ``features=scattering``. Raises ValueError for images of other sides."""
    _, height, side = shape
    if height != side or side < 8 or side % 4:
        raise ValueError(
            "features=scattering needs square images whose side is a multiple of 4, 8 at least, "
            f"got {shape}: give image_size, or another model"
        )
    transform = scattering.Scattering2d(side)
    code = hashlib.sha256(Path(scattering.__file__).read_bytes()).hexdigest()
    return Encoder(name=SCATTERING, digest=f"scattering {code}", encode=transform)


def _written_vision(
    own: Written, label: str, shape: tuple[int, int, int], models: Builders
) -> Encoder:
    """The encoder of a vision model that fedlsg wrote: the inputs of its classifier."""
    where, name = f"features={label}", str(own.facts.get("model"))
    if name not in models:
        raise ValueError(
            f"{where}: no model {name!r} reads images of {shape}; there are {', '.join(models)}"
        )
    with torch.random.fork_rng(devices=[]):
        model = models[name]()
    if not isinstance(getattr(model, CLASSIFIER, None), nn.Module):
        raise ValueError(
            f"{where}: model {name!r} has no layer named {CLASSIFIER}, whose inputs are the "
            "features"
        )
    try:
        load_pretrained(model, str(own.weights))
    except ValueError as error:
        raise ValueError(f"{where} does not read images of {shape}: {error}") from error
    setattr(model, CLASSIFIER, nn.Identity())
    digest = digest_files([own.weights], salt=f"vision {name} {shape}")
    return Encoder(name=label, digest=digest, encode=model.eval(), graph=model)


def _transformers_vision(source: EncoderSource) -> Encoder:
    """The encoder of a vision model of transformers: the mean of its last hidden states."""
    from transformers import AutoModel

    config = load_config(source)
    if not hasattr(config, "num_channels"):
        raise ValueError(
            f"features={source.name} is no model of images ({type(config).__name__}): give one, or "
            "scattering"
        )
    settings = _preprocessor(model_folder(source))
    size = _side(settings.get("size", getattr(config, "image_size", DEFAULT_SIDE)))
    halves = [HALF] * config.num_channels
    mean, deviation = (
        torch.tensor(settings.get(name) or halves).view(-1, 1, 1)
        for name in ("image_mean", "image_std")
    )
    model = load_body(AutoModel, source, config, "sdpa").eval()

    def encode(pixels: Inputs) -> Tensor:
        assert isinstance(pixels, Tensor)
        x = pixels.expand(-1, config.num_channels, -1, -1) if pixels.shape[1] == 1 else pixels
        x = F.interpolate(x, size=(size, size), mode="bilinear", antialias=True)
        hidden = model(pixel_values=(x - mean) / deviation).last_hidden_state
        # maps (1, width, h, w) of convolutions, or (1, tokens, width) of transformers
        averaged: Tensor = hidden.mean((2, 3)) if hidden.ndim == 4 else hidden.mean(1)
        return averaged

    return Encoder(
        name=Path(source.name).name,
        digest=f"vision {folder_digest(source)}",
        encode=encode,
        pixels=True,
        graph=encode,
    )


def _encode_text(model: TextClassifier, tokens: Inputs) -> Float[Tensor, "one width"]:
    """The features of one text."""
    assert isinstance(tokens, dict)
    features: Tensor = model(**tokens)
    return features


def _classes(own: Written) -> int:
    """Classes of the output layer of a text model that fedlsg wrote; 2 for a model without one.

    A head of two layers has a wider hidden layer: the smallest number of rows is that of classes.
    """
    weights = read_weights(own.weights)
    sizes = [len(w) for name, w in weights.items() if name.startswith(f"{CLASSIFIER}.")]
    return min(sizes, default=2)


def folder_digest(source: EncoderSource) -> str:
    """A digest of a model's weights and configuration, and of the version of transformers."""
    import transformers

    folder = model_folder(source)
    files = [
        *folder.glob("*.safetensors"),
        *folder.glob("*config.json"),
        *folder.glob("1_Pooling/config.json"),
    ]
    return digest_files(files, salt=transformers.__version__)


def _preprocessor(folder: Path) -> Mapping[str, Any]:
    """The settings of the images of a vision model; empty for a folder without them."""
    file = folder / "preprocessor_config.json"
    settings: Mapping[str, Any] = bounded.read_json(file) if file.is_file() else {}
    return settings


def _side(size: Any) -> int:
    """Pixels on a side, as preprocessor_config.json or config.json write it."""
    if isinstance(size, Mapping):
        return int(size.get("height") or size["shortest_edge"])
    return int(size[0] if isinstance(size, list | tuple) else size)
