"""What was received of one linear layer, as one pair of equations whatever the method.

Symbols: G (m, B) gradients at the layer's outputs, one column an example; X (n, B) its inputs, one column an example.
    right = L^T G X^T    (r, n)    dR of carriers, dA of LoRA; dW itself with L = identity where the gradient is dense
    left  = G (R X)^T    (m, r)    dL of carriers, dB of LoRA; absent where the gradient is dense
    bias  = G 1          (m,)      db
Clip factors and local steps on the same batch scale the columns of G and change nothing else, under a joint clip.
Everything is float64, public or received.
"""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedlsg.attacks.observation import DoesNotApply, Observation
from fedlsg.carriers import Adapted
from fedlsg.forms import TANGENT


@dataclass(frozen=True, kw_only=True, eq=False)
class Received:
    """One matrix or vector as received: zero where it was not sent, and the deviation of the noise on each number."""

    values: Float[Tensor, "*shape"]
    kept: Bool[Tensor, "*shape"]
    noise_std: float

    @property
    def whole(self) -> bool:
        """Whether every coordinate was sent."""
        return bool(self.kept.all())


@dataclass(frozen=True, kw_only=True, eq=False)
class ReceivedLayer:
    """The equations of one layer; L and R are None where the gradient is dense, R alone where nothing came of dL.

    scaled_alike: whether the same clip factor is on all three, so that their ratios are those of the gradients.
    """

    path: str
    right: Received
    left: Received | None
    bias: Received | None
    L: Float[Tensor, "m r"] | None
    R: Float[Tensor, "r n"] | None
    scaled_alike: bool

    @property
    def inputs(self) -> int:
        """n: inputs of the layer."""
        return self.right.values.shape[1]

    def outer(self, g: Float[Tensor, "m *batch"]) -> Float[Tensor, "rows *batch"]:
        """L^T g: what the gradient at the layer's output is in the rows of ``right``."""
        return g if self.L is None else self.L.mT @ g


def first_layer(seen: Observation) -> str:
    """Path of the layer that sees the model's input. Raises DoesNotApply unless it is a trained linear layer."""
    path, module = "", seen.model
    for path, module in seen.model.named_modules():
        if isinstance(module, Adapted | nn.Linear):
            return str(path)
        if next(module.parameters(recurse=False), None) is not None:
            break
    kind = type(module).__name__
    raise DoesNotApply(f"the input goes into {path or 'the model'} ({kind}) first: closed forms need a linear layer")


def received_layer(seen: Observation, path: str | None = None) -> ReceivedLayer:
    """The equations of the linear layer at ``path``, of the first layer without one.

    Raises DoesNotApply where the module is not linear, or its weight's gradient was sent as a core, or not at all.
    """
    path = first_layer(seen) if path is None else path
    module = seen.model.get_submodule(path)
    prefix = f"{path}." if path else ""
    L: Tensor | None
    R: Tensor | None
    if isinstance(module, Adapted) and isinstance(module.base, nn.Linear):
        if module.core is not None:
            raise DoesNotApply(f"{path}.core was sent, B^T G (A X)^T: closed forms need L^T G X^T")
        up, down = (f"{prefix}{name}.weight" for name in ("up", "down"))
        A, B = seen.model.get_parameter(down), seen.model.get_parameter(up)
        L, R = (module.scale * factor.detach().double() for factor in (B, A))
        keys, bias = ((up, "dense"), (down, "dense")), f"{prefix}base.bias"
    elif isinstance(module, nn.Linear):
        weight = f"{prefix}weight"
        own = next((c for c in seen.frame.coordinates if c.name == weight), None)
        if own is not None and own.carried and own.form is not TANGENT:
            raise DoesNotApply(f"{weight} was sent as a core, L^T G (R X)^T: closed forms need L^T G X^T")
        L, R = (None, None) if own is None or own.L is None or own.R is None else (own.L.double(), own.R.double())
        keys = ((weight, "absent"), (weight, "dense")) if L is None else ((weight, "L"), (weight, "R"))
        bias = f"{prefix}bias"
    else:
        raise DoesNotApply(f"{path or 'the model'} is a {type(module).__name__}: closed forms need a linear layer")
    left, right = (_received(seen, key) for key in keys)
    if right is None or not bool(right.kept.any()):
        raise DoesNotApply(f"nothing was sent of the gradient of {path or 'the model'}.weight (frozen, or masked away)")
    alike = not (seen.mechanism.clips and seen.mechanism.clip == "per-block")
    return ReceivedLayer(
        path=path, right=right, left=left, bias=_received(seen, (bias, "dense")), L=L, R=R, scaled_alike=alike
    )


def _received(seen: Observation, key: tuple[str, str]) -> Received | None:
    found = [b for b in seen.frame.blocks if (b.parameter, b.part) == key]
    if not found:
        return None
    values, kept = seen.blocks[key].double(), seen.kept[key]
    if values.ndim == 3:
        values, kept = values.flatten(1), kept.flatten(1)
    return Received(values=values, kept=kept, noise_std=seen.noise_std / found[0].weight)
