"""ReLU with a smooth second derivative: what lets a matching attack see through ReLU networks.

Symbols: s(z) the sigmoid, b the sharpness, 1[z > 0] the slope of ReLU.
A gradient of ReLU networks depends on the input through the slopes 1[z > 0], too. Their derivative is 0 almost
everywhere, so autograd tells a matching attack nothing about them, and its search stops far from the image. Here the
values and the first derivative are those of ReLU; only the derivative of the slope is replaced, by that of s(b z).
This is the surrogate gradient of spiking networks (Neftci et al. 2019), applied to the second derivative.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

RELUS = (F.relu, torch.relu, Tensor.relu)


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, sharpness: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.sharpness = sharpness
        return (z > 0).to(z)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        soft = torch.sigmoid(ctx.sharpness * z)
        return outer[0] * ctx.sharpness * soft * (1 - soft), None


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, sharpness: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.sharpness = sharpness
        return z.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        slope: Tensor = _Slope.apply(z, ctx.sharpness)
        return outer[0] * slope, None


def smooth_relu(z: Float[Tensor, "*shape"], sharpness: float) -> Float[Tensor, "*shape"]:
    """ReLU whose second derivative is b s(b z) (1 - s(b z)), of integral 1 like that of the exact one.

    Guarantee: the values and the first derivative are those of ``torch.relu``. Raises ValueError for b <= 0.
    """
    if not sharpness > 0:
        raise ValueError(f"expected {sharpness=} > 0")
    result: Tensor = _Relu.apply(z, sharpness)
    return result


class SmoothRelus(TorchFunctionMode):
    """While it is entered, every ReLU of a forward pass is ``smooth_relu``; models stay as they are.

    ``sharpness`` is that for a z of root mean square 1: it is divided by the one of each layer's z.
    ``nn.ReLU`` and ``F.relu`` also when in place. Not the method ``x.relu_()``: it stays exact.
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
