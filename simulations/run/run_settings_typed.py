"""Types of the settings of runs. Made by ``python -m docs._sphinx.typed``: do not edit."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from fedlsg.carriers.probe.carrier import Draw
from fedlsg.strategies.method_settings_typed import MethodSettings


class RunSettings(MethodSettings, total=False):
    """Settings of a run, and further arguments of ``Workload``."""

    activation_storage: Literal["float32", "bfloat16"]
    alpha: float | None
    augment: Literal["none", "flip-crop"] | None
    availability: str | None
    batch_size: int | None
    client_cpus: int
    client_deltas: str | None
    client_epsilons: str | None
    client_gpus: float
    client_timeout: float | None
    clients_per_round: int | None
    clip_count_noise: float | None
    clip_learning_rate: float | None
    clip_quantile: float | None
    codec: Literal["float32", "float16", "bfloat16", "noise-floor", "int8", "sign"]
    colluders: int | None
    data_dir: str | None
    data_from: Literal["node", "driver"] | None
    data_root: str | None
    dataset: str | None
    deadline: float | None
    device: Literal["auto", "cpu", "cuda"]
    downlink: Literal["full", "sparse"]
    downlink_codec: Literal["float32", "float16", "bfloat16", "noise-floor", "int8"] | None
    downlink_mbps: float | None
    dropout: float | None
    encoder_dropout: float | None
    epochs: float | None
    evaluate_clients: bool
    evaluate_every: int
    example_seconds: float | None
    feature_axes: int | None
    feature_norm: str | None
    features: str | None
    head_width: int | None
    holdout: float | None
    image_background: str | None
    image_frame: int | None
    indices: Literal["derived", "explicit"]
    input_columns: str | None
    isolation: Literal["auto", "isolated", "rows", "checked"]
    label_column: str | None
    loader_workers: int | None
    local_learning_rate: float | None
    local_momentum: float | None
    local_steps: int | None
    max_length: int | None
    microbatch_size: int | None
    min_survivors: int | None
    multiplicity: int | None
    noise_floor_step: float
    normalise: Literal["none", "public"]
    over_selection: float | None
    partial_run: bool
    patch_filters: int | None
    patch_places: int | None
    patch_scales: int | None
    patch_size: int | None
    person_gradient: Literal["mean", "sum"]
    person_rows: int
    personal: str | None
    personal_learning_rate: float | None
    precision: Literal["float32", "bfloat16"]
    preset: str | None
    pretrained: str | None
    pretrained_sha256: str | None
    proximal: float | None
    public_rows: str | None
    record_updates: bool
    reproducible: bool
    round_timeout: float
    sample_rate: float | None
    sampling: Literal["poisson", "shuffle"]
    seed: int
    selection: Literal["uniform", "turns", "poisson"] | None
    shards_per_client: int | None
    show_names: bool
    speed: str | None
    subset: str | None
    test_split: str | None
    threads: int
    train_layers: int | None
    train_rows: int | None
    trust: Literal["client", "secure", "aggregate", "server"]
    uplink_budget: int | None
    uplink_mbps: float | None
    weighting: Literal["examples", "clients", "noise"] | None
    workers: int | None
    inputs: str | Sequence[str] | None
    targets: str | Sequence[str] | None
    transform: Callable[..., Any] | None
    num_classes: int | None
    classes: Sequence[str] | None
    classifier: str | None
    image_size: int | None
    probe: Draw | None
    name: str
