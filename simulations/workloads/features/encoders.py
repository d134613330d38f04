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
WEIGHTS, FACTS = "model.safetensors", "config.json"
GONE = "random-process"
Builders = Mapping[str, Callable[[], nn.Module]]
HALF = (0.5, 0.5, 0.5)
"""Mean and standard deviation of pixels for a vision model whose folder says none."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A model that fedlsg wrote: its folder, and what config.json says of it."""

    folder: Path
    facts: Mapping[str, Any]

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS

    @property
    def text(self) -> EncoderSource:
        """The encoder of a text model, as its run named it."""
        return find_encoder(
            str(self.facts["model"]), self.facts.get("options", {}).get("pretrained")
        )


def written(features: str) -> Written | None:
    """The model that fedlsg wrote at a path; None for any other name. ValueError for an unreadable
    config.json.
    """
    folder = Path(features).expanduser()
    folder = folder.parent if folder.name == WEIGHTS else folder
    if not ((folder / WEIGHTS).is_file() and (folder / FACTS).is_file()):
        return None
    try:
        facts = bounded.read_json(folder / FACTS)
    except (OSError, ValueError) as error:
        raise ValueError(f"features={features}: cannot read {folder / FACTS} ({error})") from error
    return (
        Written(folder=folder, facts=facts)
        if isinstance(facts, dict) and "fedlsg" in facts
        else None
    )


def text_source(features: str) -> EncoderSource:
    """The encoder whose tokenizer prepares texts for ``features``. Raises ValueError, or what
    finding it raises.
    """
    if features in (PATCHES, SCATTERING):
        raise ValueError(
            f"features={features} is for images, and these are texts: give features=minilm, or "
            "another"
        )
    words = written(features)
    return _transformers_source(features) if words is None else words.text


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
    """Tokens to one vector a text: the pooling that the model names, else the mean over its tokens.

    Of a model that fedlsg wrote: what its classifier reads.
    """
    words, source = written(features), text_source(features)
    if words is None:
        model = sentence_encoder(source)
        digest = folder_digest(source)
    else:
        model = build_encoder(source, num_classes=_classes(words))
        load_pretrained(model, str(words.weights))
        model.classifier = nn.Identity()
        digest = digest_files([words.weights], salt=folder_digest(source))
    return Encoder(
        name=Path(features).name,
        digest=f"text {digest}",
        encode=partial(_encode_text, model.eval()),
    )


def image_encoder(features: str, shape: tuple[int, int, int], models: Builders) -> Encoder:
    """The encoder of images (channels, height, width).

    models: those of the workload, and any other that reads such images, with a layer named
    ``classifier``.
    Raises ValueError for images that it cannot read, and what finding a model raises.
    """
    if features == SCATTERING:
        return _scattering(shape)
    words = written(features)
    if words is not None:
        return _written_vision(words, words.folder.name, shape, models)
    return _transformers_vision(_transformers_source(features))


def patches_encoder(
    shape: tuple[int, int, int], settings: PatchSettings, *, cache: Path, progress: Progress
) -> Encoder:
    """The encoder of ``features=patches``; its filters are in the cache folder. Raises ValueError
    for images that are too small, and for too many filters.
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
    found: Written, called: str, shape: tuple[int, int, int], models: Builders
) -> Encoder:
    where, name = f"features={called}", str(found.facts.get("model"))
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
        load_pretrained(model, str(found.weights))
    except ValueError as error:
        raise ValueError(f"{where} does not read images of {shape}: {error}") from error
    setattr(model, CLASSIFIER, nn.Identity())
    code = digest_files([found.weights], salt=f"vision {name} {shape}")
    return Encoder(name=called, digest=code, encode=model.eval(), graph=model)


def _transformers_vision(source: EncoderSource) -> Encoder:
    from transformers import AutoModel

    config = load_config(source)
    if not hasattr(config, "num_channels"):
        raise ValueError(
            f"features={source.name} is no model of images ({type(config).__name__}): give one, or "
            "scattering"
        )
    settings = _preprocessor(model_folder(source))
    size = _side(settings.get("size", getattr(config, "image_size", 224)))
    mean, deviation = (
        torch.tensor(settings.get(name) or HALF[:1] * config.num_channels).view(-1, 1, 1)
        for name in ("image_mean", "image_std")
    )
    model = load_body(AutoModel, source, config, "sdpa").eval()

    def encode(pixels: Inputs) -> Tensor:
        assert isinstance(pixels, Tensor)
        x = pixels.expand(-1, config.num_channels, -1, -1) if pixels.shape[1] == 1 else pixels
        x = F.interpolate(x, size=(size, size), mode="bilinear", antialias=True)
        hidden = model(pixel_values=(x - mean) / deviation).last_hidden_state
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
    assert isinstance(tokens, dict)
    features: Tensor = model(**tokens)
    return features


def _classes(found: Written) -> int:
    """Classes that the output layer of a written text model has; 2 for a model without one."""
    sizes = [
        len(tensor)
        for name, tensor in read_weights(found.weights).items()
        if name.startswith(f"{CLASSIFIER}.")
    ]
    return min(sizes, default=2)


def folder_digest(source: EncoderSource) -> str:
    """Digest of a model's weights and of how it is built and pooled, and the version of
    transformers.
    """
    import transformers

    folder = model_folder(source)
    files = [
        *folder.glob("*.safetensors"),
        *folder.glob("*config.json"),
        *folder.glob("1_Pooling/config.json"),
    ]
    return digest_files(files, salt=transformers.__version__)


def _preprocessor(folder: Path) -> Mapping[str, Any]:
    file = folder / "preprocessor_config.json"
    settings: Mapping[str, Any] = bounded.read_json(file) if file.is_file() else {}
    return settings


def _side(size: Any) -> int:
    """Pixels on a side, as preprocessor_config.json or config.json write it."""
    if isinstance(size, Mapping):
        return int(size.get("height") or size["shortest_edge"])
    return int(size[0] if isinstance(size, list | tuple) else size)
