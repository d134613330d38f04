"""Per-example gradients in the coordinates of a frame.

The dense gradient of a carried layer is never formed. How data flows through this package:

    per_example         the batch, its losses, and the result; ``summed_gradients`` is one ordinary
                        backward pass without hooks
    isolation           the gradients of each example, at a level that says what the code of users
                        sees
    hooked_layers       which layers get hooks, and which blocks of the frame each one computes
    hooks               one pass: forward hooks call ``remember``, backward hooks ``form_block``
    blocks              forward: what a layer keeps of its input and output; backward: the layer's
                        blocks, from that and from the gradient at its output
    formulas            the products that these call, one class for each type of layer
    called              layers whose gradients are a function of one call
    calls               such functions: built in, by torch.func, or registered
    uses                parameters without a layer, and shared ones: copied for each example where
                        they meet the batch
    unbatched           the values that all examples share until then
    sources             where such values enter a layer, and where their gradients go
    known               what of this is found out once, for as long as the model stays as it is
    precision           the precision of a pass
    activation_storage  activations that wait for backward: in half the memory, or computed again

Around a pass:

    supported           refuses models without per-example gradients, before anything is computed
    replacements        layers that mix examples, replaced by others
    losses              one loss for each example, from a loss as torch's users have it
    loss_contents       what a loss holds besides its code
    independence        the check that a model and a loss treat examples independently
    layer_faults        torch's errors about a layer's inputs, in words
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
