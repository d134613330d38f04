"""A text classifier that averages hidden states, or takes the first: code that an exported folder
carries with it.

transformers runs a copy of this file (``trust_remote_code=True``), so it imports nothing of fedlsg.
Its classes for classification pool in other ways.
"""

from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class PooledTextConfig(PretrainedConfig):
    """``body``: configuration of the encoder. ``pooling``: ``mean`` of the real tokens, or ``cls``,
    the first one.
    """

    model_type = "fedlsg-pooled-text"

    def __init__(
        self, body: dict[str, Any] | None = None, pooling: str = "mean", **rest: Any
    ) -> None:
        self.body, self.pooling = body or {}, pooling
        super().__init__(**rest)


class PooledTextClassifier(PreTrainedModel):
    """Tokens to logits: ``classifier(pool(body(tokens)))``."""

    config_class = PooledTextConfig

    def __init__(self, config: PooledTextConfig) -> None:
        super().__init__(config)
        body: Any = AutoConfig.for_model(**config.body)
        self.body = AutoModel.from_config(body)
        if getattr(self.body, "pooler", None) is not None:
            self.body.pooler = None  # it is not called
        self.classifier = nn.Linear(body.hidden_size, config.num_labels or 0)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, **rest: Tensor
    ) -> SequenceClassifierOutput:
        """(batch, tokens) to ``logits`` (batch, labels); ``rest``: such as token_type_ids."""
        hidden = self.body(
            input_ids=input_ids, attention_mask=attention_mask, **rest
        ).last_hidden_state
        if self.config.pooling == "cls":
            return SequenceClassifierOutput(logits=self.classifier(hidden[:, 0]))
        real = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return SequenceClassifierOutput(
            logits=self.classifier((hidden * real).sum(1) / real.sum(1))
        )
