"""Per-example gradients in the coordinates of a frame; the dense gradient of a carried layer is
never formed.
"""

from fedlsg.gradients.calls import registered_layers
from fedlsg.gradients.formulas.ghost import GhostGradients, keeps_float32_digits
from fedlsg.gradients.formulas.layers import LAYERS, Factors, kept_values
from fedlsg.gradients.formulas.norm import NormGradients
from fedlsg.gradients.formulas.standardized import StandardizedConv2d
from fedlsg.gradients.known import check
from fedlsg.gradients.losses import per_example_loss
from fedlsg.gradients.per_example import (
    Batch,
    LossFunction,
    batch_size,
    call,
    factored_gradients,
    summable,
    summed_gradient,
    summed_gradients,
)
from fedlsg.gradients.precision import FLOAT32, Precision, without_autocast
from fedlsg.gradients.supported import Checked, check_initialized, check_supported, trainable

__all__ = [
    "FLOAT32",
    "LAYERS",
    "Batch",
    "Checked",
    "Factors",
    "GhostGradients",
    "LossFunction",
    "NormGradients",
    "Precision",
    "StandardizedConv2d",
    "batch_size",
    "call",
    "check",
    "check_initialized",
    "check_supported",
    "factored_gradients",
    "keeps_float32_digits",
    "kept_values",
    "per_example_loss",
    "registered_layers",
    "summable",
    "summed_gradient",
    "summed_gradients",
    "trainable",
    "without_autocast",
]
