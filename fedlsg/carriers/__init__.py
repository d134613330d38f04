"""Carriers: how the gradients of a model's weights are sent, one class for each way.

    base          the base class, and which weights are carried
    low_rank      carriers of W, of W - W_0, or random ones; ``Dense``, without carriers
    lora          trained factors next to a frozen W
    powersgd      factors of a noisy update
    probe         directions of gradients of public inputs: import its names from there
    own_carriers  carriers of a user's function

Helpers:

    personal          parameters that stay with each client
    parameter_layout  what each parameter of a model sends, as a table
    statistics        numbers of gradients that the papers show
"""

from fedlsg.carriers.base import (
    Carrier,
    PowerSteps,
    Rank,
    carried_parameters,
    carried_sizes,
    find_classifier,
    find_output_layer,
    of_pairs,
    prepare_model,
)
from fedlsg.carriers.lora import (
    Adapted,
    Lora,
    LoraAlpha,
    TrainEmbeddings,
    adapted_layers,
    embeddings_of,
    frozen_bases,
    mask_factors,
    merge,
)
from fedlsg.carriers.low_rank import (
    Dense,
    LowRank,
    LowRankChange,
    RandomCarriers,
    Residual,
    StepCarrier,
    Warmup,
    step_carrier,
)
from fedlsg.carriers.own_carriers import OutRank, OwnCarriers
from fedlsg.carriers.parameter_layout import LayerRow, group_layers, layer_table, totals
from fedlsg.carriers.powersgd import Factors

__all__ = [
    "Adapted",
    "Carrier",
    "Dense",
    "Factors",
    "LayerRow",
    "Lora",
    "LoraAlpha",
    "LowRank",
    "LowRankChange",
    "OutRank",
    "OwnCarriers",
    "PowerSteps",
    "RandomCarriers",
    "Rank",
    "Residual",
    "StepCarrier",
    "TrainEmbeddings",
    "Warmup",
    "adapted_layers",
    "carried_parameters",
    "carried_sizes",
    "embeddings_of",
    "find_classifier",
    "find_output_layer",
    "frozen_bases",
    "group_layers",
    "layer_table",
    "mask_factors",
    "merge",
    "of_pairs",
    "prepare_model",
    "step_carrier",
    "totals",
]
