"""The precision of a pass, and of the activations that it keeps: float32 by default.

``precision="bfloat16"``: mixed precision. Forward runs under autocast. The products of layers that
autocast runs in bfloat16 are also formed in bfloat16 here. Norms, softmax and the loss keep the
precision that autocast gives them.
``activation_storage="bfloat16"``: activations are rounded while they wait for backward
(``ActivationStorage``).

TF32 is no setting here: torch decides it, for convolutions of CUDA by default, for products where a
user allows it. It rounds the factors of a product to 11 bits. Guaranteed, whatever torch is set to:
norms are taken in float64, of the numbers that are summed, or are proven upper bounds (on a GPU:
``device_sums``); the clip's factors multiply these numbers in float32 at least, in a matrix
product only where it ``keeps_digits``; ghost clipping is used only where no product and no
convolution is rounded. So TF32 reaches forward, backward and what is computed from public weights,
and never the clip.

Privacy. Blocks are clipped in the parameter's own type, whatever their precision before. The norm
of a block is taken in float64, of the very numbers that are summed; the sum is in float32 at least,
outside any autocast. So the contribution of one example is no longer than C. That alone does not
bound the effect of one example: its neighbours' blocks must not depend on it. In bfloat16 they can:
another shape of the pass (a padded length, a number of rows) selects other kernels, which round
every row differently. The neighbours of one long text moved by up to C together.
``training.one_pass`` therefore makes the shape of a pass independent of the other examples. The
sensitivity test of the simulations measures the sum: at most C (1 + 1e-4), in float32 and bfloat16.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from torch import Tensor

Bits = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The precision of a pass, forward and backward.

    precision: of products; see the module docstring.
    activation_storage: of activations while they wait for backward.
    """

    precision: Bits = "float32"
    activation_storage: Bits = "float32"

    def __post_init__(self) -> None:
        for f in fields(self):
            if getattr(self, f.name) not in get_args(Bits):
                raise ValueError(
                    f"expected {f.name} in {get_args(Bits)}, got {getattr(self, f.name)!r}"
                )

    @property
    def mixed(self) -> bool:
        """Whether products are taken in bfloat16."""
        return self.precision == "bfloat16"

    @property
    def rounds_activations(self) -> bool:
        """Whether activations are rounded to bfloat16 while they wait for backward."""
        return self.activation_storage == "bfloat16"

    def losses(
        self,
        outputs: Callable[[], Any],
        loss_fn: Callable[[Any, Any], Tensor],
        targets: Any,
        like: Tensor,
    ) -> Any:
        """The losses of a forward pass.

        outputs: the forward pass.
        like: a tensor on the pass' device.
        In mixed precision the forward pass runs under autocast, and the loss in float32.
        """
        if not self.mixed:
            return loss_fn(outputs(), targets)
        with torch.autocast(like.device.type, dtype=torch.bfloat16):
            result = outputs()
        if isinstance(result, Tensor) and result.dtype == torch.bfloat16:
            result = result.float()
        with without_autocast(like.device.type):
            return loss_fn(result, targets)


FLOAT32 = Precision()
"""The default."""


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Switch autocast off inside the context.

    If it is off already, nothing is done: torch's context manager costs as much as a small layer.
    """
    return (
        torch.autocast(device_type, enabled=False)
        if torch.is_autocast_enabled(device_type)
        else nullcontext()
    )
