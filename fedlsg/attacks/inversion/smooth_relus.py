"""ReLU with a smooth second derivative, so that a matching attack can follow its slopes.

A gradient of a ReLU network depends on the input also through the slopes 1[z > 0]. Their derivative
is 0 almost everywhere. So autograd tells a matching attack nothing about them, and the search stops
far from the image. Here values and first derivative are those of ReLU. Only the derivative of the
slope is replaced, by that of the sigmoid s(b z) of sharpness b: the surrogate gradient of spiking
networks (Neftci et al. 2019), applied to the second derivative.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

RELUS = (F.relu, torch.relu, Tensor.relu)
"""The functions that are replaced; ``nn.ReLU`` calls the first."""


class SmoothRelus(TorchFunctionMode):
    """Inside, every ReLU of a forward pass is ``smooth_relu``; models stay as they are.

    ``sharpness`` is for z of root mean square 1: in each layer it is divided by that of its z.
    ``nn.ReLU`` and ``F.relu`` are replaced even in place. The method ``x.relu_()`` stays exact.
    """

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        self.sharpness = sharpness

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace ReLU, and call everything else."""
        if func in RELUS:
            z: Tensor = args[0] if args else (kwargs or {})["input"]
            size = z.detach().square().mean().sqrt().clamp_min(torch.finfo(z.dtype).tiny)
            return smooth_relu(z, self.sharpness / float(size))
        return func(*args, **(kwargs or {}))


def smooth_relu(z: Float[Tensor, "*shape"], sharpness: float) -> Float[Tensor, "*shape"]:
    """ReLU whose second derivative is b s(b z) (1 - s(b z)), of integral 1 as the exact one.

    Guarantee: the values and the first derivative are those of ``torch.relu``. Raises ValueError
    for b <= 0.
    """
    if not sharpness > 0:
        raise ValueError(f"expected {sharpness=} > 0")
    result: Tensor = _Relu.apply(z, sharpness)
    return result


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, sharpness: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.sharpness = sharpness
        return z.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(ctx.sharpness * z)
        # 0 in value: it adds the derivative of the sigmoid to that of the slope
        derivative_only = sigmoid - sigmoid.detach()
        return outer[0] * ((z > 0).to(z) + derivative_only), None
