"""All settings of a run, in one frozen record: what a user may say, before the workload fills the gaps.

The same names serve the command line (``--rank 8`` or ``-c rank=8``), ``flwr run . --run-config "rank=8"`` (with
dashes) and ``config.toml`` of a run directory. A setting that is None, or ``"preset"`` in a file, takes the
workload's value (see ``simulations/plan/plan.py``).
"""

import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedlsg.choices import did_you_mean

PRESET = "preset"
Bits = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """See the groups below; ``None`` means "the workload's own"."""

    # what is trained
    workload: str = "digits"
    method: str = "lsg"
    preset: str | None = None
    from_preset: str | None = None
    model: str | None = None
    pretrained: str | None = None
    train_layers: int | None = None
    seed: int = 0
    data_dir: str | None = None
    dataset: str | None = None
    subset: str | None = None
    input_columns: str | None = None
    label_column: str | None = None
    test_split: str | None = None
    max_length: int | None = None
    train_rows: int | None = None
    holdout: float | None = None
    augment: Literal["none", "flip-crop"] | None = None
    multiplicity: int | None = None
    # where gradients live and what is kept
    rank: int | None = None
    sparsity: float | None = None
    direction: Literal["top", "bottom"] | None = None
    power_steps: int | None = None
    warmup: int | None = None
    cooling: bool | None = None
    importance: Literal["weights", "carriers", "random"] | None = None
    sparsity_from: float | None = None
    residual: bool | None = None
    redraw: Literal["epoch", "step"] | None = None
    ranking: Literal["random", "gradients"] | None = None
    carrier: Literal["dense", "low-rank", "low-rank-change", "random"] | None = None
    refresh: bool | None = None
    lora_alpha: float | None = None
    topk_rate: float | None = None
    prune: Literal["none", "random", "synflow", "dp-snip"] | None = None
    prune_rate: float | None = None
    prune_epsilon_share: float | None = None
    prune_clip_norm: float | None = None
    drop: Literal["none", "random", "magnitude"] | None = None
    drop_rate: float | None = None
    # what protects them
    mechanism: Literal["dp", "clip-only", "noise-only", "none"] | None = None
    clip: Literal["joint", "per-block"] | None = None
    clip_norm: float | None = None
    norms_clip_weight: float | None = None
    classifier_clip_weight: float | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    trust: Literal["client", "aggregate"] = "client"
    min_survivors: int | None = None
    reproducible: bool = False
    # the federation
    rounds: int | None = None
    clients: int | None = None
    clients_per_round: int | None = None
    local_steps: int | None = None
    local_learning_rate: float | None = None
    local_momentum: float | None = None
    sampling: Literal["poisson"] = "poisson"
    sample_rate: float | None = None
    batch_size: int | None = None
    microbatch_size: int | None = None
    partition: Literal["iid", "dirichlet", "shards"] | None = None
    alpha: float | None = None
    shards_per_client: int | None = None
    # what the server does
    estimator: Literal["eq3", "averaged"] | None = None
    optimizer: Literal["sgd", "adam"] | None = None
    learning_rate: float | None = None
    final_learning_rate: float | None = None
    norms_learning_rate: float | None = None
    classifier_learning_rate: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    schedule: Literal["constant", "linear", "cosine", "exponential", "step"] | None = None
    sparsify_update: float | None = None
    ema: float | None = None
    # what is sent and written
    codec: str = "float32"
    noise_floor_step: float | None = None
    indices: Literal["derived", "explicit"] = "derived"
    downlink: Literal["full", "sparse"] = "full"
    downlink_codec: str | None = None
    record_updates: bool = False
    evaluate_every: int = 1
    # where it runs
    engine: Literal["flower", "local"] = "flower"
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Bits = "float32"
    activation_storage: Bits = "float32"
    threads: int = 1
    client_cpus: int = 1
    client_gpus: float = 0.25
    grouped: bool = True
    round_timeout: float = 3600.0
    run_dir: str | None = None


def parse(given: Mapping[str, object]) -> dict[str, Any]:
    """Settings by field name from raw values (strings from a command line, typed ones from TOML); dashes allowed.

    Leaves out what is None or ``"preset"``. Raises ValueError naming the setting for an unknown name, with the
    nearest known one, or a value of the wrong type or outside its choices.
    """
    hints = get_type_hints(Settings)
    known: dict[str, Any] = {}
    for raw_name, value in given.items():
        name = raw_name.replace("-", "_")
        if name not in hints:
            raise ValueError(f"unknown setting {raw_name!r}{did_you_mean(name, hints)}")
        if value is not None and value != PRESET:
            known[name] = _convert(name, value, hints[name])
    return known


def from_mapping(given: Mapping[str, object]) -> Settings:
    """``Settings`` from raw values, see ``parse``."""
    return Settings(**parse(given))


def as_config(settings: Settings) -> dict[str, str | int | float | bool]:
    """Flat TOML-ready mapping with dashes, as Flower's run config wants it; what is None is left out."""
    values = {f.name.replace("_", "-"): getattr(settings, f.name) for f in fields(settings)}
    return {name: value for name, value in values.items() if value is not None}


def _convert(name: str, value: object, hint: Any) -> object:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(option for option in get_args(hint) if option is not type(None))
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"expected {name} in {get_args(hint)}, got {value!r}")
        return value
    if hint is bool:
        return _boolean(name, value)
    if hint is str:
        return str(value)
    try:
        if isinstance(value, bool) or (hint is int and isinstance(value, float) and value != int(value)):
            raise ValueError
        return hint(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"expected a number ({hint.__name__}) for {name}, got {value!r}") from None


def _boolean(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if str(value).lower() not in words:
        raise ValueError(f"expected true or false for {name}, got {value!r}")
    return words[str(value).lower()]
