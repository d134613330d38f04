"""Low-rank carriers: where L and R come from, LoRA, PowerSGD, and which parameters are carried."""

from fedlsg.carriers.carrier import (
    Carrier,
    LoraAlpha,
    PowerSteps,
    Rank,
    Residual,
    Warmup,
    carried_parameters,
)
from fedlsg.carriers.head import find_classifier, find_output_layer
from fedlsg.carriers.layout import LayerRow, group_layers, layer_table, totals
from fedlsg.carriers.lora import Adapted, adapted_layers, frozen_bases, mask_factors, merge, prepare_model

__all__ = [
    "Adapted", "Carrier", "LayerRow", "LoraAlpha", "PowerSteps", "Rank", "Residual", "Warmup", "adapted_layers",
    "carried_parameters", "find_classifier", "find_output_layer", "frozen_bases", "group_layers", "layer_table",
    "mask_factors", "merge", "prepare_model", "totals",
]  # fmt: skip
