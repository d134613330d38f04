"""What was received of one linear layer, as one pair of equations whatever the method.

Symbols: G (m, B) gradients at the layer's outputs, one column an example; X (n, B) its inputs, one
    column an example.
    right = L^T G X^T    (r, n)    dR of carriers, dA of LoRA; dW itself with L = identity where the
                         gradient is dense
    left  = G (R X)^T    (m, r)    dL of carriers, dB of LoRA; absent where the gradient is dense
    bias  = G 1          (m,)      db
Clip factors and local steps on the same batch scale the columns of G and change nothing else, under
a joint clip. Everything is float64, public or received.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedlsg.attacks.observation import DoesNotApply, Observation
from fedlsg.carriers import Adapted
from fedlsg.frame.forms import TANGENT

NOTHING = 1e-12
"""A signal below this share of the largest is rounding of float64."""
SWEEPS = 200
"""Alternating least squares, where single entries were sent."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Received:
    """One matrix or vector as received.

    values: zero where nothing was sent.
    kept: which numbers were sent.
    noise_std: deviation of the noise on each number.
    """

    values: Float[Tensor, "*shape"]
    kept: Bool[Tensor, "*shape"]
    noise_std: float

    @property
    def whole(self) -> bool:
        """Whether every coordinate was sent."""
        return bool(self.kept.all())

    @property
    def mT(self) -> "Received":
        """The transpose."""
        return Received(values=self.values.mT, kept=self.kept.mT, noise_std=self.noise_std)

    def all_or_none(self, axis: int) -> bool:
        """Whether along an axis every slice was sent as a whole or not at all."""
        return bool((self.kept.all(axis) == self.kept.any(axis)).all())


@dataclass(frozen=True, kw_only=True, eq=False)
class ReceivedLayer:
    """The equations of one layer.

    path: of the layer.
    right, left, bias: see the module docstring; None where nothing was received.
    L, R: the carriers; None for a dense gradient.
    scaled_alike: whether the same clip factor is on all three, so that their ratios are those of
        the gradients.
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


def first_layer(observation: Observation) -> str:
    """Path of the layer that sees the model's input.

    Raises DoesNotApply unless it is a trained linear layer.
    """
    path, module = "", observation.model
    if observation.encoded:
        raise DoesNotApply("the first layer sees features, which no closed form leads back from")
    for path, module in observation.model.named_modules():
        if isinstance(module, Adapted | nn.Linear):
            return str(path)
        if next(module.parameters(recurse=False), None) is not None:
            break
    kind = type(module).__name__
    raise DoesNotApply(
        f"the input goes into {path or 'the model'} ({kind}) first: closed forms need a linear "
        "layer"
    )


def received_layer(observation: Observation, path: str | None = None) -> ReceivedLayer:
    """The equations of the linear layer at ``path``, of the first layer without one.

    Raises DoesNotApply where the module is not linear, or its weight's gradient was sent in another
    form than tangent, or not at all.
    """
    path = first_layer(observation) if path is None else path
    module = observation.model.get_submodule(path)
    prefix = f"{path}." if path else ""
    L: Tensor | None
    R: Tensor | None
    if isinstance(module, Adapted) and isinstance(module.base, nn.Linear):
        if module.core is not None:
            raise DoesNotApply(f"{path}.core was sent, B^T G (A X)^T: closed forms need L^T G X^T")
        up, down = (f"{prefix}{name}.weight" for name in ("up", "down"))
        A, B = observation.model.get_parameter(down), observation.model.get_parameter(up)
        L, R = (module.scale * factor.detach().double() for factor in (B, A))
        keys, bias = ((up, "dense"), (down, "dense")), f"{prefix}base.bias"
    elif isinstance(module, nn.Linear):
        weight = f"{prefix}weight"
        coordinates = next((c for c in observation.frame.coordinates if c.name == weight), None)
        if coordinates is not None and coordinates.carried and coordinates.form is not TANGENT:
            raise DoesNotApply(
                f"{weight} was sent in the form {coordinates.form.name!r}: closed forms need "
                "L^T G X^T"
            )
        L, R = (
            (None, None)
            if coordinates is None or coordinates.L is None or coordinates.R is None
            else (coordinates.L.double(), coordinates.R.double())
        )
        keys = (
            ((weight, "absent"), (weight, "dense")) if L is None else ((weight, "L"), (weight, "R"))
        )
        bias = f"{prefix}bias"
    else:
        raise DoesNotApply(
            f"{path or 'the model'} is a {type(module).__name__}: closed forms need a linear layer"
        )
    left, right = (_received(observation, key) for key in keys)
    if right is None or not bool(right.kept.any()):
        raise DoesNotApply(
            f"nothing was sent of the gradient of {path or 'the model'}.weight (frozen, or masked "
            "away)"
        )
    alike = not (observation.mechanism.clips and observation.mechanism.clip == "per-block")
    return ReceivedLayer(
        path=path,
        right=right,
        left=left,
        bias=_received(observation, (bias, "dense")),
        L=L,
        R=R,
        scaled_alike=alike,
    )


def received_first_layer(observation: Observation, size: int) -> ReceivedLayer:
    """The equations of the first layer, which must take ``size`` numbers.

    Raises DoesNotApply as above, and for another size.
    """
    layer = received_layer(observation)
    if size != layer.inputs:
        raise DoesNotApply(
            f"the first layer takes {layer.inputs} numbers, an input has {size}: it sees positions"
        )
    return layer


def _received(observation: Observation, key: tuple[str, str]) -> Received | None:
    blocks = [b for b in observation.frame.blocks if (b.parameter, b.part) == key]
    if not blocks:
        return None
    values, kept = observation.blocks[key].double(), observation.kept[key]
    if values.ndim == 3:
        values, kept = values.flatten(1), kept.flatten(1)
    return Received(values=values, kept=kept, noise_std=observation.noise_std / blocks[0].weight)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ratio:
    """Least squares of every column of right = v x^T in x alone, v being known.

    x: NaN where no coordinate with v in it was sent.
    residual: norm of right - v x^T over norm of right: 0 for one example without noise, larger for
        several examples.
    """

    x: Float[Tensor, " n"]
    residual: float


def ratio(right: Received, v: Float[Tensor, " rows"]) -> Ratio:
    """x from ``right`` = v x^T, column by column; rows where v is NaN are left out."""
    known = right.kept & v.isfinite().unsqueeze(1)
    v = v.nan_to_num(0.0)
    energy = known.double().mT @ v.square()
    largest = float(v.square().sum())
    x = torch.where(energy > NOTHING**2 * largest, right.values.mT @ v / energy, torch.nan)
    off = torch.where(known, right.values - torch.outer(v, x.nan_to_num(0.0)), 0.0)
    norm = float(torch.where(known, right.values, 0.0).norm())
    return Ratio(x=x, residual=float(off.norm()) / norm if norm else torch.nan)


def direction(right: Received) -> tuple[Float[Tensor, " n"], float]:
    """The unit vector x of the rank-one matrix v x^T that fits ``right`` best, and the residual.

    x is NaN in columns of which nothing was sent.
    The leading singular vector where whole columns were sent, refined by alternating least squares
    where single entries were: exact for one example without noise once the sent entries tie all
    rows and columns together.
    """
    v: Tensor = torch.linalg.svd(right.values, full_matrices=False)[0][:, 0]
    for _ in range(1 if right.all_or_none(0) else SWEEPS):
        v = ratio(right.mT, ratio(right, v).x).x
        v = v / v.nan_to_num(0.0).norm()
    fit = ratio(right, v)
    x = torch.where(right.kept.any(0), fit.x, torch.nan)
    return x / x.nan_to_num(0.0).norm(), fit.residual
