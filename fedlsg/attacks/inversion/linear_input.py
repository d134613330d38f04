"""The input of a linear layer from one example's gradient, in closed form; without a bias its scale by replay.

Symbols: g (m,) gradient at the layer's output, x (n,) its input, v = L^T g (r,), s noise deviation.
    right = v x^T, bias = g    =>    x = right^T v / |v|^2      (Phong et al. 2018 for dense gradients, where v = g)
A clip factor, a learning rate and several local steps on the same example multiply v and cancel. Masked columns of
``right`` are not in the equation. Without a bias right = v x^T is the same for (v / t, t x). The other layers are not:
of all t x, replayed through the client's own step under a label, the one that gives what was received is the input.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from scipy.optimize import minimize_scalar
from torch import Tensor

from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.inversion.received_layer import Received, ReceivedLayer, received_layer
from fedlsg.attacks.observation import DoesNotApply, Guess, Observation
from fedlsg.attacks.replay import replay

NOTHING = 1e-12
"""Below this share of the largest signal there is none: float64's rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ratio:
    """Least squares of every column of right = v x^T in x alone, v being known.

    x: NaN where no coordinate with v in it was sent. energy: sum of v^2 over what was sent of a column. residual: norm
    of right - v x^T over norm of right: 0 for one example without noise, larger for several examples.
    """

    x: Float[Tensor, " n"]
    energy: Float[Tensor, " n"]
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
    return Ratio(x=x, energy=energy, residual=float(off.norm()) / norm if norm else torch.nan)


def output_gradient(layer: ReceivedLayer) -> Float[Tensor, " m"] | None:
    """g from the bias, frozen entries filled in from left = g u^T, NaN where neither was sent; None without a bias."""
    bias, left = layer.bias, layer.left
    if bias is None or not layer.scaled_alike or not bool((bias.values != 0).any()):
        return None
    g = torch.where(bias.kept, bias.values, torch.nan)
    if left is None or bias.whole:
        return g
    u = ratio(left, g).x  # left = g u^T has g in its rows, too
    other = ratio(Received(values=left.values.mT, kept=left.kept.mT, noise_std=left.noise_std), u).x
    return torch.where(bias.kept, g, other)


def input_of_linear(seen: Observation, prior: Prior, *, path: str | None = None) -> Guess:
    """The input of the first linear layer (or of the one at ``path``) as (1, *prior.shape), or (1, n) for a later one.

    Guarantee: for one example, no noise, and a bias that was sent, every kept column of x is exact to rounding,
    whatever the joint clip, the clip's weights or the mask; a frozen column is NaN, unless R (which multiplies all
    columns into dL) has rank enough to solve for all of them. Without a bias, under per-block clipping, or where too
    little of the bias was sent, the direction is exact and the prior's range settles sign and scale. For several
    examples it is a mean of theirs, weighted by v. With noise x is clamped to the prior's range; ``squared_error`` is
    predicted before the clamp, to second order in noise over v. ``objective``: the residual of right = v x^T.
    Raises DoesNotApply where no linear layer is first, its inputs are not those of the prior, or nothing was sent.
    """
    layer = received_layer(seen, path)
    shape = prior.shape if path is None else (layer.inputs,)
    if path is None and prior.size != layer.inputs:
        raise DoesNotApply(
            f"the first layer takes {layer.inputs} numbers, an input has {prior.size}: it sees positions"
        )
    g = output_gradient(layer)
    v = None if g is None else layer.outer(g)
    if g is None or v is None or bool(v.isnan().all()):
        x, residual = direction(layer.right)
        x, note = fit_range(x, prior), "direction from the gradient, sign and scale from the prior's range"
        return Guess(inputs=x.reshape(1, *shape), objective=residual, scale_open=True, note=note)
    if not bool(v.nan_to_num(0.0).any()):
        raise DoesNotApply("L^T db is zero: nothing of the gradient reaches the carriers (LoRA's B may still be 0)")
    found = ratio(layer.right, v)
    x = frozen_columns(layer, found.x, g)
    error = None
    if layer.right.noise_std > 0:
        assert layer.bias is not None
        error = predicted_error(found, layer.right.noise_std, layer.bias.noise_std, int(v.isfinite().sum()))
        x = clamp(x, prior) if path is None else x
    unknown = int(x.isnan().sum())
    note = f"v^T right / |v|^2; {unknown} of {layer.inputs} inputs unknown" if unknown else "v^T right / |v|^2"
    return Guess(inputs=x.reshape(1, *shape), objective=found.residual, squared_error=error, note=note)


def predicted_error(found: Ratio, right_std: float, bias_std: float, rows: int) -> float:
    """Expected |x - estimate|^2 over the known columns, before any clamp, given the received v of ``rows`` numbers.

    Noise on ``right`` gives s^2 / |v|^2 a column; noise on g turns v by s^2 / |v|^2 and shortens x by rows s^2 / |v|^2.
    |x|^2 is that of the estimate with both taken off. To second order: too small where noise is most of v.
    """
    known = found.x.isfinite()
    noise, turned = right_std**2 / found.energy[known], bias_std**2 / found.energy[known]
    shortened = (rows * turned).clamp(max=0.5)
    size = (found.x[known].square() - noise).sum().clamp(min=0) / (1 - shortened.mean()).square()
    return float((noise + size / max(1, int(known.sum())) * (turned + shortened.square())).sum())


def frozen_columns(layer: ReceivedLayer, x: Float[Tensor, " n"], g: Float[Tensor, " m"]) -> Float[Tensor, " n"]:
    """x with its unknown entries solved from left = g (R x)^T where that determines them, NaN where it does not."""
    frozen = x.isnan()
    if layer.left is None or layer.R is None or not 0 < int(frozen.sum()) <= len(layer.R):
        return x
    u = ratio(layer.left, g).x
    known = u.isfinite()
    R = layer.R[known]
    if torch.linalg.matrix_rank(R[:, frozen]) < int(frozen.sum()):
        return x
    rest = u[known] - R[:, ~frozen] @ x[~frozen]
    filled = x.clone()
    filled[frozen] = torch.linalg.lstsq(R[:, frozen], rest).solution
    return filled


def direction(right: Received, sweeps: int = 200) -> tuple[Float[Tensor, " n"], float]:
    """Unit x of the rank-one matrix that fits what was sent of ``right`` best, NaN in empty columns, and the residual.

    The leading singular vector where whole columns were sent, refined by alternating least squares where single
    entries were: exact for one example without noise once the sent entries tie all rows and columns together.
    """
    columns = right.kept.any(0)
    v: Tensor = torch.linalg.svd(right.values, full_matrices=False)[0][:, 0]
    flipped = Received(values=right.values.mT, kept=right.kept.mT, noise_std=right.noise_std)
    for _ in range(1 if _whole_columns(right.kept) else sweeps):
        x = ratio(right, v).x
        v = ratio(flipped, x).x
        v = v / v.nan_to_num(0.0).norm()
    found = ratio(right, v)
    x = torch.where(columns, found.x, torch.nan)
    return x / x.nan_to_num(0.0).norm(), found.residual


def _whole_columns(kept: Bool[Tensor, "rows n"]) -> bool:
    return bool((kept.all(0) == kept.any(0)).all())


def fit_range(x: Float[Tensor, " n"], prior: Prior) -> Float[Tensor, " n"]:
    """x with the sign and the largest scale that keep it in the prior's range; its middle value where it cannot be.

    Of both signs the one that allows the larger scale, which for images in [0, 1] is the positive one. A later layer,
    for which there is no prior, is left as it is.
    """
    if prior.size != len(x):
        return x
    low, high = (end.flatten() for end in prior.bounds)

    def largest(y: Tensor) -> float:
        ends = torch.where(y > 0, high / y, torch.where(y < 0, low / y, torch.inf))
        return float(ends[y.isfinite() & (y.abs() > 1e-9 * y.nan_to_num(0.0).abs().max())].min())

    scale, sign = max((largest(sign * x), sign) for sign in (1.0, -1.0))
    return x * sign * scale if 0 < scale < torch.inf else x


def clamp(x: Float[Tensor, " n"], prior: Prior) -> Float[Tensor, " n"]:
    """x pulled into the prior's range, NaN left alone."""
    low, high = (end.flatten() for end in prior.bounds)
    return torch.where(x.isnan(), x, x.clamp(low, high))


def settle_scale(seen: Observation, guess: Guess, label: int, *, decades: float = 2.0, points: int = 41) -> Guess:
    """``guess`` of one input, known up to sign and scale, at the sign and scale that explain the payload best.

    Scales within ``decades`` powers of ten around the guess's own are tried on a grid, and the best one of either sign
    refined. ``objective``: |replay - received| / |received|; without noise it is 0 at the input, to about 1e-8.
    Raises DoesNotApply for several inputs, or one with unknown entries.
    """
    if len(guess.inputs) != 1 or not bool(guess.inputs.isfinite().all()):
        raise DoesNotApply("the scale is searched for one input whose entries are all known up to it")
    target, size = torch.tensor([label]), float(seen.values.norm())
    start = guess.inputs.to(seen.values)

    def off(sign: float, power: float) -> float:
        sent = replay(seen, _scaled(start, sign, power), target).detach()
        return float((sent - seen.values).norm()) / size

    step = 2 * decades / (points - 1)
    grid = [(off(sign, i * step - decades), sign, i * step - decades) for sign in (1.0, -1.0) for i in range(points)]
    _, sign, power = min(grid)
    found = minimize_scalar(
        lambda p: off(sign, p), bounds=(power - step, power + step), method="bounded", options={"xatol": 1e-12}
    )
    inputs = _scaled(start, sign, float(found.x)).to(guess.inputs)
    return Guess(inputs=inputs, labels=target, objective=float(found.fun), note="direction exact, scale from a replay")


def _scaled(start: Tensor, sign: float, power: float) -> Tensor:
    return start * (sign * math.pow(10.0, power))
