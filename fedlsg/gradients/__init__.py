"""Per-example gradients in the coordinates of a frame.

The dense gradient of a carried layer is never formed. How data flows through this package:

    per_example    the batch, its losses, and the result; ``summed_gradients`` is one ordinary
                   backward pass without hooks
    isolation      the gradients of each example, at a level that says what the code of users sees
    hooked_pass    one forward and backward pass with hooks, for models that it supports
    formulas       the products that the hooks call, one class for each type of layer
    calls          gradients as functions of a layer's call: built in, by torch.func, or registered

Around a pass:

    replacements   layers that mix examples, replaced by others
    losses         one loss for each example, from a loss as torch's users have it
    loss_contents  what a loss holds besides its code
    independence   the check that a model and a loss treat examples independently
    layer_faults   torch's errors about a layer's inputs, in words
    device_sums    norms and sums of all gradients on a GPU, with their rounding bounded
"""

from fedlsg.gradients.calls import registered_layers
from fedlsg.gradients.formulas.ghost import GhostGradients, keeps_float32_digits
from fedlsg.gradients.formulas.layers import LAYERS, Factors, kept_values
from fedlsg.gradients.formulas.norm import NormGradients
from fedlsg.gradients.formulas.standardized import StandardizedConv2d
from fedlsg.gradients.hooked_pass.model_facts import check
from fedlsg.gradients.hooked_pass.parameters import trainable
from fedlsg.gradients.hooked_pass.precision import FLOAT32, Precision, without_autocast
from fedlsg.gradients.hooked_pass.supported import (
    Checked,
    check_initialized,
    check_supported,
)
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
