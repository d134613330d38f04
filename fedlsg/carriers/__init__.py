"""Low-rank carriers: where L and R come from, LoRA, PowerSGD, and which parameters are carried."""

from fedlsg.carriers.carrier import (
    Carrier,
    CarrierKind,
    carried_parameters,
    coordinates,
    find_classifier,
    without_residual,
)
from fedlsg.carriers.layout import LayerRow, grouped, layer_table, totals
from fedlsg.carriers.lora import Adapted, frozen_bases, masked_factors, prepare_model
from fedlsg.carriers.statistics import (
    Clipping,
    Energy,
    block_squares,
    clipping,
    kept_energy,
    principal_carriers,
    random_energy,
    residual,
    select_kept,
    stable_rank,
)

__all__ = [
    "Adapted",
    "Carrier",
    "CarrierKind",
    "Clipping",
    "Energy",
    "LayerRow",
    "block_squares",
    "carried_parameters",
    "clipping",
    "coordinates",
    "find_classifier",
    "frozen_bases",
    "grouped",
    "kept_energy",
    "layer_table",
    "masked_factors",
    "prepare_model",
    "principal_carriers",
    "random_energy",
    "residual",
    "select_kept",
    "stable_rank",
    "totals",
    "without_residual",
]
