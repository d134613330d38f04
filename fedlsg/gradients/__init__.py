"""Per-example gradients in the coordinates of a frame; the dense gradient of a carried layer is never formed."""

from fedlsg.gradients.batch import Batch, LossFunction, batch_size, call
from fedlsg.gradients.formulas.ghost import GhostGradients, keeps_float32_digits
from fedlsg.gradients.formulas.layers import LAYERS, kept_values
from fedlsg.gradients.formulas.norm import NormGradients
from fedlsg.gradients.formulas.standardized import StandardizedConv2d
from fedlsg.gradients.per_example import block_gradients, per_example_gradients
from fedlsg.gradients.plain_sum import summable, summed_gradient, summed_gradients
from fedlsg.gradients.precision import FLOAT32, Numbers
from fedlsg.gradients.supported import Checked, check, check_supported, trainable

__all__ = [
    "FLOAT32", "LAYERS", "Batch", "Checked", "GhostGradients", "LossFunction", "NormGradients", "Numbers",
    "StandardizedConv2d", "batch_size", "block_gradients", "call", "check", "check_supported", "keeps_float32_digits",
    "kept_values", "per_example_gradients", "summable", "summed_gradient", "summed_gradients", "trainable",
]  # fmt: skip
