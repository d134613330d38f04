"""Models of the ``transformers`` library as folders that it reads without fedlsg: what a run notes, and the folder.

A run notes the model's class and configuration, so that its folder needs no name, no hub and no data.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from simulations.models.encoder import HEADS, TextClassifier, quiet


def describe(model: nn.Module) -> dict[str, Any] | None:
    """Class, configuration, pooling and head of a model that transformers can load; None for any other model.

    ``head``: where transformers has the module that is ``classifier`` here; None if the model is its own.
    """
    ours = isinstance(model, TextClassifier)
    body: Any = model.body if ours else model
    if not type(body).__module__.startswith("transformers."):
        return None
    pooling = model.pooling if ours else "own"
    head = next((name for name in HEADS if isinstance(getattr(body, name, None), nn.Identity)), None) if ours else None
    return {
        "class": type(body).__name__,
        "config": json.loads(body.config.to_json_string(use_diff=False)),
        "pooling": pooling,
        "head": head,
    }


def save_pretrained(folder: Path, tensors: Mapping[str, Tensor], said: Mapping[str, Any]) -> None:
    """Write the folder that ``from_pretrained`` reads, of what ``describe`` said and the state_dict without adapters.

    Models of the pooling ``mean`` and ``cls`` bring their own code (``pooled_text``): transformers then wants
    ``trust_remote_code=True``. Raises RuntimeError for tensors that do not fit the class.
    """
    import transformers

    if said["pooling"] == "own":
        kind = getattr(transformers, said["class"])
        model = kind(kind.config_class.from_dict(dict(said["config"])))
        tensors = {transformers_name(name, said["head"]): tensor for name, tensor in tensors.items()}
    else:
        from simulations.models.pooled_text import PooledTextClassifier, PooledTextConfig

        PooledTextConfig.register_for_auto_class()
        PooledTextClassifier.register_for_auto_class("AutoModelForSequenceClassification")
        labels = len(tensors["classifier.weight"])
        model = PooledTextClassifier(PooledTextConfig(body=said["config"], pooling=said["pooling"], num_labels=labels))
    model.load_state_dict(dict(tensors))
    with quiet():
        model.save_pretrained(folder)
    for path in folder.glob("*.safetensors"):
        path.chmod((folder / "config.json").stat().st_mode)  # the library gives it to its owner alone


def transformers_name(name: str, head: str | None) -> str:
    """The name of one of ``TextClassifier``'s tensors in transformers' class; the same for a model of its own."""
    if head is None:
        return name
    if name.startswith("body."):
        return name.removeprefix("body.")
    return f"{head}.{name.removeprefix('classifier.')}"
