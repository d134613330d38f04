"""Text classifiers on encoders of ``transformers``, in a form that private training supports.

One rule says for every encoder which parameters are trained, and how they are sent:
    frozen: embeddings (tokens, positions, types) with their LayerNorm; layers below the top
        ``train_layers``
    dense: the output layer, biases, LayerNorms
    carried: other Linears, if carriers are smaller (``fedlsg.carriers``): attention, feed-forward,
        BERT's pooler, and ``dense`` of RoBERTa's head, which has the path ``classifier`` with the
        layers ``dense`` and ``out_proj``
Build through ``fedlsg.simulations.workloads.build_model``, which makes random initial weights
public and repeatable.

A run notes the class and the configuration of a model of the library, so that its folder, which the
library reads without fedlsg, needs no name, no hub and no data (``describe``, ``save_pretrained``).
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fedlsg import bounded
from fedlsg.simulations.models.encoder_source import EncoderSource, load_config, model_folder

Pooling = Literal["own", "mean", "cls"]
"""How hidden states of tokens become one vector: see ``TextClassifier``."""
HEADS = ("classifier", "score", "classification_head")
"""Names of the head in classification models of transformers."""


class TextClassifier(nn.Module):
    """Tokens to logits: ``classifier(pool(body(tokens)))``.

    body: a model of transformers; with the pooling ``own``, its head is an identity.
    classifier: the head.
    pooling: ``own``: the body's own pooling before its head; ``mean``: the average of the last
        hidden states of the real tokens; ``cls``: the last hidden state of the first token.
    Guarantee: padding on the right changes logits by rounding only.
    """

    def __init__(self, body: nn.Module, classifier: nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.body, self.classifier, self.pooling = body, classifier, pooling

    def forward(
        self,
        input_ids: Int64[Tensor, "batch tokens"],
        attention_mask: Int64[Tensor, "batch tokens"],
        token_type_ids: Int64[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "batch classes"]:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        out = self.body(input_ids=input_ids, attention_mask=attention_mask, **types)
        if self.pooling == "own":
            features = out.logits  # the head's place in the body holds an identity
        elif self.pooling == "cls":
            features = out.last_hidden_state[:, 0]
        else:
            real = attention_mask.unsqueeze(-1).to(out.last_hidden_state.dtype)
            features = (out.last_hidden_state * real).sum(1) / real.sum(1)
        logits: Tensor = self.classifier(features)
        return logits


def build_encoder(
    source: EncoderSource,
    *,
    num_classes: int,
    train_layers: int | None = None,
    attention: str = "sdpa",
    dropout: float = 0.0,
) -> TextClassifier:
    """The classifier of an encoder with a new head, in float32.

    A folder in the layout of sentence-transformers is pooled as its ``1_Pooling/config.json`` says,
    and gets one Linear as head. Any other model keeps its own pooling and the kind of head that
    transformers gives it.

    train_layers: only so many of the top layers are trained; None: all.
    attention: transformers' name of the implementation. Per-example gradients are equal under
        ``sdpa`` and ``eager``.
    dropout: of hidden states, attention and the head, while it trains.
    Raises: ValueError: ``train_layers`` out of range, a checkpoint that lacks weights, a model
        without a known head. FileNotFoundError: a folder without safetensors. ConnectionError: see
        ``encoder_source.model_folder``.
    """
    from transformers import AutoModel, AutoModelForSequenceClassification

    config = load_config(source, dropout)
    config.num_labels = num_classes
    pooling = _pooling(source)
    kind = AutoModelForSequenceClassification if pooling == "own" else AutoModel
    if source.pretrained:
        body = load_body(kind, source, config, attention)
    else:
        body = kind.from_config(config, attn_implementation=attention, dtype=torch.float32)
    base = body.base_model
    if pooling == "own":
        classifier = _take_head(body)
    else:
        classifier = nn.Linear(config.hidden_size, num_classes)
        nn.init.normal_(classifier.weight, std=config.initializer_range)
        nn.init.zeros_(classifier.bias)
        if getattr(base, "pooler", None) is not None:
            base.pooler = None  # it is not called, and would send noise alone
    freeze(base, train_layers, layers=config.num_hidden_layers)
    return TextClassifier(body, classifier, pooling)


def sentence_encoder(source: EncoderSource) -> TextClassifier:
    """The encoder with an identity as its head: tokens to one vector for each text, (B, hidden).

    It is pooled as a folder of sentence-transformers says, or by the mean over the real tokens.
    Poolers of transformers are not used: a checkpoint may lack their weights.
    """
    from transformers import AutoModel

    body = load_body(AutoModel, source, load_config(source), "sdpa")
    if getattr(body, "pooler", None) is not None:
        body.pooler = None
    pooling = _pooling(source)
    return TextClassifier(body, nn.Identity(), "mean" if pooling == "own" else pooling)


def freeze(base: nn.Module, train_layers: int | None, *, layers: int) -> None:
    """Freeze the embeddings of an encoder without its head, and all but its top layers.

    A pooler is on top and stays trainable.

    train_layers: how many layers stay trainable; None: all.
    layers: how many there are.
    Raises ValueError unless 0 <= train_layers <= layers.
    """
    for name, module in base.named_modules():
        if isinstance(module, nn.Embedding) or name.rpartition(".")[2] == "embeddings":
            module.requires_grad_(False)
    if train_layers is None:
        return
    if not 0 <= train_layers <= layers:
        raise ValueError(
            f"expected 0 <= {train_layers=} <= {layers}, the layers of {type(base).__name__}"
        )
    lists = [m for m in base.modules() if isinstance(m, nn.ModuleList) and len(m) == layers]
    if not lists:
        raise ValueError(
            f"found no list of {layers} layers in {type(base).__name__}: leave train_layers out"
        )
    on_top = [*list(lists[0])[layers - train_layers :], getattr(base, "pooler", None)]
    trained = {id(p) for module in on_top if module is not None for p in module.parameters()}
    for p in base.parameters():
        if id(p) not in trained:
            p.requires_grad_(False)


def _take_head(body: nn.Module) -> nn.Module:
    """The model's head; an identity takes its place."""
    for name in HEADS:
        head = getattr(body, name, None)
        if isinstance(head, nn.Module):
            setattr(body, name, nn.Identity())
            return head
    raise ValueError(
        f"{type(body).__name__} has no head named {', '.join(HEADS)}; choose another model"
    )


def _pooling(source: EncoderSource) -> Pooling:
    """The pooling that a folder of sentence-transformers names; ``own`` for any other."""
    if source.needs_no_download:
        return "own"
    file = model_folder(source) / "1_Pooling" / "config.json"
    if not file.is_file():
        return "own"
    settings = bounded.read_json(file)
    if settings.get("pooling_mode_mean_tokens"):
        return "mean"
    if settings.get("pooling_mode_cls_token"):
        return "cls"
    raise ValueError(f"expected mean or cls pooling in {file}")


def load_body(kind: Any, source: EncoderSource, config: Any, attention: str) -> Any:
    """A model with its weights, float32; ``kind``: an auto class of transformers.

    Raises as ``build_encoder``.
    """
    folder = model_folder(source)
    if not any(Path(folder).glob("*.safetensors")):
        raise FileNotFoundError(
            f"no safetensors file in {folder}; save the model again with a current transformers"
        )
    with quiet():
        model, loading = kind.from_pretrained(
            folder,
            config=config,
            attn_implementation=attention,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    absent = {*loading["missing_keys"], *(key[0] for key in loading["mismatched_keys"])}
    # the checkpoint of a base model lacks what classification adds on top
    added = {"pooler", "pre_classifier", *HEADS}
    missing = sorted(key for key in absent if added.isdisjoint(key.split(".")))
    if missing:
        raise ValueError(
            f"the checkpoint in {folder} lacks {len(missing)} weights of its model, {missing[0]} "
            "first"
        )
    for p in model.parameters():
        # A file's memory map is not aligned as torch aligns its own memory, and matrix products
        # round otherwise there: server and clients would derive frames of different bits, and every
        # frame would have to be sent.
        p.data = p.data.clone()
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers shows no progress bars, and no report about a new head."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def describe(model: nn.Module) -> dict[str, Any] | None:
    """Class, configuration, pooling and head of a model; None if transformers cannot load it.

    The head is the name that transformers has for the module ``classifier`` here. It is None for a
    model of transformers itself.
    """
    body: Any = model
    pooling, head = "own", None
    if isinstance(model, TextClassifier):
        body, pooling = model.body, model.pooling
        identities = [n for n in HEADS if isinstance(getattr(body, n, None), nn.Identity)]
        head = identities[0] if identities else None
    if not type(body).__module__.startswith("transformers."):
        return None
    return {
        "class": type(body).__name__,
        "config": json.loads(body.config.to_json_string(use_diff=False)),
        "pooling": pooling,
        "head": head,
    }


def save_pretrained(folder: Path, tensors: Mapping[str, Tensor], said: Mapping[str, Any]) -> None:
    """Write the folder that ``from_pretrained`` reads.

    Models with the pooling ``mean`` and ``cls`` bring their own code (``pooled_text``):
    transformers then wants ``trust_remote_code=True``.

    tensors: the state_dict, without adapters.
    said: what ``describe`` gave.
    Raises RuntimeError for tensors that do not fit the class.
    """
    import transformers

    if said["pooling"] == "own":
        kind = getattr(transformers, said["class"])
        model = kind(kind.config_class.from_dict(dict(said["config"])))
        tensors = {
            transformers_name(name, said["head"]): tensor for name, tensor in tensors.items()
        }
    else:
        from fedlsg.simulations.models.pooled_text import PooledTextClassifier, PooledTextConfig

        PooledTextConfig.register_for_auto_class()
        PooledTextClassifier.register_for_auto_class("AutoModelForSequenceClassification")
        labels = len(tensors["classifier.weight"])
        model = PooledTextClassifier(
            PooledTextConfig(body=said["config"], pooling=said["pooling"], num_labels=labels)
        )
    model.load_state_dict(dict(tensors))
    with quiet():
        model.save_pretrained(folder)
    for path in folder.glob("*.safetensors"):
        # the library makes it readable for its owner alone
        path.chmod((folder / "config.json").stat().st_mode)


def transformers_name(name: str, head: str | None) -> str:
    """The name in transformers of a tensor of ``TextClassifier``; ``head``: as in ``describe``.

    Without a head the model is one of transformers, and names are the same.
    """
    if head is None:
        return name
    if name.startswith("body."):
        return name.removeprefix("body.")
    return f"{head}.{name.removeprefix('classifier.')}"
