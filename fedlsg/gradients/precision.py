"""How many bits a pass computes with, and how many it keeps for backward. Both float32 unless asked for.

``precision="bfloat16"``: mixed precision. Forward runs under autocast, and so do the products of the layers that
autocast runs in bfloat16, our own among them; norms, softmax and the loss keep what autocast leaves them.
``activation_storage="bfloat16"``: see activation_storage.py.

What this asks of privacy. What is clipped is a block of numbers in the parameter's own type, however it came about; its
norm is taken of those very numbers in float64, and they are what is summed, in float32 at least, outside any autocast.
So one example's contribution is as long as C at most. That alone does not bound what the example moves: a coarser block
must also be a function of its own example. In bfloat16 it is not, where another shape of the pass (a padded length, a
number of rows) selects other kernels, which round every row otherwise: the neighbours of one long text moved by up to C
together. company.py therefore keeps the shape of a pass from depending on who else is in the batch, and
tests/simulations/test_sensitivity.py measures the sum: C (1 + 1e-4) at most, in float32 and in bfloat16.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from fedlsg.gradients.hooked_layers import Layer
from fedlsg.tensors import exactly

Bits = Literal["float32", "bfloat16"]
PRODUCTS = (nn.Linear, nn.Conv2d)
"""Layers whose blocks are plain products of x and g, and so may be formed in bfloat16."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The numbers of a pass, forward and backward; see the module's header."""

    precision: Bits = "float32"
    activation_storage: Bits = "float32"

    def __post_init__(self) -> None:
        for f in fields(self):
            if getattr(self, f.name) not in get_args(Bits):
                raise ValueError(f"expected {f.name} in {get_args(Bits)}, got {getattr(self, f.name)!r}")

    @property
    def mixed(self) -> bool:
        """Whether products are taken in bfloat16."""
        return self.precision == "bfloat16"

    def losses(
        self, outputs: Callable[[], Any], loss_fn: Callable[[Any, Any], Tensor], targets: Any, like: Tensor
    ) -> Any:
        """``loss_fn`` of a forward pass, on the device of ``like``; in mixed precision the loss in float32."""
        if not self.mixed:
            return loss_fn(outputs(), targets)
        with torch.autocast(like.device.type, dtype=torch.bfloat16):
            found = outputs()
        if isinstance(found, Tensor) and found.dtype == torch.bfloat16:
            found = found.float()
        with exactly(like.device.type):
            return loss_fn(found, targets)

    def formed(self, layer: Layer) -> Layer:
        """The layer as its blocks are formed: in bfloat16 where autocast takes its product in bfloat16.

        u comes from x then: the way through the output (through_output.py) would enlarge the rounding of y by the
        condition of the carriers.
        """
        if not self.mixed or layer.dtype != torch.float32 or type(layer.module) not in PRODUCTS:
            return layer
        carried = layer.carried
        if carried is not None:
            carried = replace(carried, L=carried.L.bfloat16(), R=carried.R.bfloat16(), A=None)
        return replace(layer, dtype=torch.bfloat16, carried=carried)


FLOAT32 = Numbers()
