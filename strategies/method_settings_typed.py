"""Types of the settings of methods. Made by ``python -m docs._sphinx.typed``: do not edit."""

from typing import Literal, TypedDict


class StepSettings(TypedDict, total=False):
    """Settings of a private step: of a recipe, of clip and noise, of the optimizer."""

    biased: bool
    carrier: Literal["dense", "low-rank", "low-rank-change", "random"]
    classifier_clip_weight: float
    classifier_learning_rate: float | None
    clip: Literal["joint", "per-block"]
    clip_norm: float
    convolutions_alone: bool
    cooling: bool
    damping: float
    direction: Literal["top", "bottom"]
    drop: Literal["none", "random", "magnitude"]
    drop_rate: float
    ema: float
    estimator: Literal["eq3", "averaged"]
    factors: Literal["both", "left"]
    final_learning_rate: float | None
    history: Literal["difference", "normalized"]
    importance: Literal["weights", "carriers", "random", "energy"]
    layer_rates: Literal["equal", "fan-in"]
    lora_alpha: float | None
    mechanism: Literal["dp", "clip-only", "noise-only", "none"]
    momentum: float
    norms_clip_weight: float
    norms_learning_rate: float | None
    optimizer_options: str | None
    out_rank: int | None
    power: float
    power_steps: int
    probes: int
    prune: Literal["none", "random", "synflow", "dp-snip"]
    prune_clip_norm: float
    prune_epsilon_share: float
    prune_rate: float
    rank: int
    ranking: Literal["random", "gradients"]
    redraw: str
    refresh: bool
    refresh_rounds: int
    residual: bool
    residual_clip: float
    schedule: Literal["constant", "linear", "cosine", "exponential", "step"]
    source: str
    sparsify_update: float
    sparsity: float
    sparsity_from: float
    topk_rate: float
    train_embeddings: bool
    trained: Literal["all", "carried"]
    warmup: int
    weight_decay: float


class MethodSettings(StepSettings, total=False):
    """Settings of a method."""

    learning_rate: float | str
    noise_multiplier: float
    optimizer: str
