"""Read an update that was made at crafted weights.

Symbols: G = A X (m, n) gradient of the first weight, A (m, k) gradients at its neurons, X (k, n)
inputs, gb = A 1. What is sent of G is linear in X whatever the method: G, L^T G, G R^T or L^T G
R^T, on kept coordinates. With A from the bias, X is the mean of its Gaussian posterior; without
noise that is least squares on all that the payload determines.
"""

import torch
from jaxtyping import Float
from scipy.optimize import least_squares
from torch import Tensor

from benchmarks.privacy.craft import centre_and_spread, imprint_bins, layers_of, signs
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.observation import DoesNotApply, Guess, Observation
from fedlsg.frame import Coordinates

VISIBLE, STANDARDS = 1e-4, 4.0
"""A neuron is read above this share of the largest, and above so many standard deviations of the
noise.
"""
ROUNDING = 1e-6
"""Deviation that stands for float32's rounding where no noise was added, over the largest value."""


def read(seen: Observation, prior: Prior, kind: str, *, target: int = 0) -> Guess:
    """Every input that the update shows, (k, *shape), given the kind of crafted weights.

    Without noise and with a whole dense gradient, fishing is exact for the only example of its
    class. Imprint and traps rest on an example that is nearly alone in a bin or trap; others leak
    into it, and two in one give a weighted mean. Traps give a guess for each neuron, also for those
    with several examples.
    Raises DoesNotApply where nothing is above the noise, or the bias is not sent.
    """
    first, _ = layers_of(seen.model)
    seen = seen.in_float64()
    blocks = seen.blocks
    gb, kept = blocks.get((f"{first}.bias", "dense")), seen.kept.get((f"{first}.bias", "dense"))
    if gb is None or kept is None:
        raise DoesNotApply("the first layer's bias is not sent: the bins are read from it")
    level = max(STANDARDS * seen.noise_std, VISIBLE * float(gb.abs().max()))
    rows = (gb.abs() > level).nonzero().flatten()
    if not len(rows):
        raise DoesNotApply("no neuron's gradient is above the noise")
    if kind == "fishing":
        X = posterior(seen, first, gb.unsqueeze(1), prior)
        labels = torch.tensor([target])
    elif kind == "imprint":
        A = fit_bins(gb, prior, level)
        X, labels = posterior(seen, first, A, prior), None
    elif kind == "traps":
        X, labels = torch.cat([_one_row(seen, first, gb, int(row), prior) for row in rows]), None
    else:
        raise ValueError(f"expected kind in imprint, traps, fishing, got {kind!r}")
    low, high = (end.flatten() for end in prior.bounds)
    return Guess(
        inputs=X.clamp(low, high).reshape(-1, *prior.shape),
        labels=labels,
        note=f"{len(rows)} neurons read",
    )


def fit_bins(gb: Float[Tensor, " m"], prior: Prior, level: float) -> Float[Tensor, "m k"]:
    """A: the neurons' gradients of each example, from gb_i = sum_x d_x sign_i tanh'(s (t_x - c_i)).

    Peaks of |gb| above ``level`` are the examples; their places t and heights d are fitted to all
    of gb.
    """
    _, centres, slope = imprint_bins(prior, len(gb))
    y = gb * signs(len(gb))
    size = torch.nn.functional.pad(y.abs(), (1, 1))
    peaks = (
        ((size[1:-1] >= size[:-2]) & (size[1:-1] > size[2:]) & (y.abs() > level))
        .nonzero()
        .flatten()
    )
    scale = float(y.abs().max())
    places = slope * centres

    def bump(t: Tensor) -> Tensor:
        return 1 / torch.cosh((t - places.unsqueeze(1)).clamp(-300, 300)).square()

    def off(parameters: object) -> object:
        t, d = torch.as_tensor(parameters, dtype=torch.float64).chunk(2)
        return ((bump(t) @ d) - y / scale).numpy()

    start = torch.cat([places[peaks], y[peaks] / scale])
    t, d = torch.from_numpy(
        least_squares(off, start.numpy(), xtol=1e-14, ftol=1e-14, gtol=1e-14).x
    ).chunk(2)
    return signs(len(gb)).unsqueeze(1) * bump(t) * d * scale


def posterior(
    seen: Observation, path: str, A: Float[Tensor, "m k"], prior: Prior
) -> Float[Tensor, "k n"]:
    """X given what was sent of G = A X, and the prior."""
    name = f"{path}.weight"
    place = _coordinates(seen, name)
    mean, _ = centre_and_spread(prior)
    assert prior.spread is not None
    k, n = A.shape[1], len(mean)
    pieces, values = [], []
    for (parameter, part), kept in seen.kept.items():
        if parameter != name or not bool(kept.any()):
            continue
        left = A if part in ("dense", "L") or place.L is None else place.L.mT @ A
        right = (
            torch.eye(n, dtype=A.dtype) if part in ("dense", "R") or place.R is None else place.R
        )
        linear = torch.einsum("ia,jn->ijan", left, right)
        pieces.append(linear[kept].reshape(-1, k * n))
        values.append(seen.blocks[parameter, part][kept])
    if not pieces:
        raise DoesNotApply(f"nothing was sent of the gradient of {name}")
    M, y = torch.cat(pieces), torch.cat(values)
    std = max(seen.noise_std, ROUNDING * float(y.abs().max()))
    K = torch.block_diag(*[prior.spread.precision] * k)
    root = torch.linalg.cholesky(K).mT
    wanted = torch.cat([(y - M @ mean.repeat(k)) / std, torch.zeros(k * n, dtype=A.dtype)])
    z: Tensor = torch.linalg.lstsq(torch.cat([M / std, root]), wanted.unsqueeze(1)).solution
    return mean + z.reshape(k, n)


def _one_row(
    seen: Observation, path: str, gb: Tensor, row: int, prior: Prior
) -> Float[Tensor, "1 n"]:
    """x of G_i = gb_i x from what was sent of row i alone: all of it, some, or G_i R^T."""
    name = f"{path}.weight"
    place = _coordinates(seen, name)
    key = (name, "L" if place.carried else "dense")
    if key not in seen.kept:
        raise DoesNotApply("rows of G are mixed (a core was sent): traps are read row by row")
    kept, values = seen.kept[key][row], seen.blocks[key][row]
    n = prior.size
    mean, covariance = centre_and_spread(prior)
    M = gb[row] * (torch.eye(n, dtype=torch.float64) if place.R is None else place.R)[kept]
    if not len(M):
        return mean.unsqueeze(0)
    std = max(seen.noise_std, ROUNDING * float(values.abs().max()))
    gain: Tensor = torch.linalg.lstsq(
        M @ covariance @ M.mT + std**2 * torch.eye(len(M)), M @ covariance
    ).solution
    return (mean + (values[kept] - M @ mean) @ gain).unsqueeze(0)


def _coordinates(seen: Observation, name: str) -> Coordinates:
    """How the gradient of a parameter is sent. Raises DoesNotApply where it is frozen."""
    found = [c for c in seen.frame.coordinates if c.name == name]
    if not found:
        raise DoesNotApply(f"nothing is sent of the gradient of {name}: the method freezes it")
    return found[0]
