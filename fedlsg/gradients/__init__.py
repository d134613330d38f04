"""Per-example gradients in the coordinates of a frame; the dense gradient of a carried layer is never formed."""

from fedlsg.gradients.ghost import Held
from fedlsg.gradients.layers import LAYERS, kept_values
from fedlsg.gradients.norm import NormGradients
from fedlsg.gradients.per_example import Batch, LossFunction, batch_size, held_gradients, per_example_gradients
from fedlsg.gradients.plain_sum import summable, summed_gradient, summed_gradients
from fedlsg.gradients.precision import FLOAT32, Numbers
from fedlsg.gradients.standardized import StandardizedConv2d
from fedlsg.gradients.supported import Checked, check_supported, trainable

__all__ = [
    "FLOAT32",
    "LAYERS",
    "Batch",
    "Checked",
    "Held",
    "LossFunction",
    "NormGradients",
    "Numbers",
    "StandardizedConv2d",
    "batch_size",
    "check_supported",
    "held_gradients",
    "kept_values",
    "per_example_gradients",
    "summable",
    "summed_gradient",
    "summed_gradients",
    "trainable",
]
