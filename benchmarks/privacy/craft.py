"""Weights that make a client's update readable, for a network x -> linear -> tanh -> linear.

Symbols: n inputs, m neurons, h (n,) measured direction, c (m,) centres, s slope, b = -s c.
    imprint   Fowl et al. 2022, "Robbing the Fed": every neuron measures h x, and answers in a bin
              of its values
    traps     Boenisch et al. 2023, "When the Curious Abandon Honesty": neurons that few examples
              activate
    fishing   Wen et al. 2022, "Fishing for User Data": only examples of one class move the first
              layer
Differs from the papers: they have ReLU, whose bins are differences of neighbours. tanh'(z) vanishes
at both ends, so that a steep neuron is a bin itself. The server chooses weights only; the
architecture is the clients' own code.
"""

import math

import torch
from jaxtyping import Float
from scipy.special import ndtri
from torch import Tensor, nn

from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.observation import DoesNotApply

KINDS = ("imprint", "traps", "fishing")
SPACING = 3.0
"""Distance of neighbouring bins in units of z."""
STEER = 1e-3
"""Share of the imprint's weight that turns carriers made from W towards the principal directions of
the prior.
"""
CLOSED, HEAD = 12.0, 1e3
"""Of an audit: |z| of closed neurons, where tanh' is below 2e-10; factor of the head."""
Weights = dict[str, Tensor]


def layers_of(model: nn.Module) -> tuple[str, str]:
    """Paths of the two linear layers. Raises DoesNotApply for any model but linear -> tanh ->
    linear.
    """
    found = [
        (path, m)
        for path, m in model.named_modules()
        if not list(m.children()) and not isinstance(m, nn.Flatten)
    ]
    kinds = [type(module) for _, module in found]
    if kinds != [nn.Linear, nn.Tanh, nn.Linear] or any(m.bias is None for _, m in found[::2]):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise DoesNotApply(
            f"expected a model of Linear, Tanh and Linear with biases, got {names}: take model mlp "
            "without adapters"
        )
    return found[0][0], found[2][0]


def centre_and_spread(prior: Prior) -> tuple[Float[Tensor, " n"], Float[Tensor, "n n"]]:
    """Mean and covariance of a prior without classes. Raises ValueError for a prior that lacks one
    of them.
    """
    if prior.mean is None or prior.spread is None or prior.mean.shape != prior.shape:
        raise ValueError(
            "expected a prior with one mean and a spread: make it by prior_from without labels"
        )
    return prior.mean.double().flatten(), torch.linalg.inv(prior.spread.precision)


def imprint_bins(
    prior: Prior, neurons: int
) -> tuple[Float[Tensor, " n"], Float[Tensor, " m"], float]:
    """h (the first principal direction), the centres c, and the slope s that puts bins ``SPACING``
    apart.

    The centres cover three standard deviations of h x on each side of its mean.
    """
    mean, covariance = centre_and_spread(prior)
    values, vectors = torch.linalg.eigh(covariance)
    h, deviation = vectors[:, -1], float(values[-1].sqrt())
    centres = float(h @ mean) + deviation * torch.linspace(-3, 3, neurons, dtype=torch.float64)
    return h, centres, SPACING / float(centres[1] - centres[0])


def signs(neurons: int) -> Float[Tensor, " m"]:
    """1, -1, 1, ...: outputs of saturated neurons cancel, so that no class is certain."""
    return 1.0 - 2.0 * (torch.arange(neurons, dtype=torch.float64) % 2)


def _reading_head(neurons: int, classes: int) -> Float[Tensor, "classes m"]:
    y = torch.arange(classes, dtype=torch.float64)
    return torch.outer((1 - 2 * (y % 2)) * (1 + y / 10), signs(neurons))


def imprint(model: nn.Module, prior: Prior, *, steer: bool = False) -> Weights:
    """Bins of h x. ``steer`` adds ``STEER`` of the prior's principal directions, which carriers
    made from W follow.
    """
    first, last = layers_of(model)
    m, n = model.get_parameter(f"{first}.weight").shape
    h, centres, slope = imprint_bins(prior, m)
    W = slope * h.expand(m, n).clone()
    if steer:
        rank = min(m, n) // 2
        directions = torch.linalg.eigh(centre_and_spread(prior)[1])[1].flip(1)[:, 1 : 1 + rank]
        grid = (torch.arange(m, dtype=torch.float64) + 0.5) / m
        waves = torch.stack([torch.cos(torch.pi * k * grid) for k in range(1, 1 + rank)], dim=1)
        falling = 0.8 ** torch.arange(rank, dtype=torch.float64)
        W = W + STEER * slope * (waves * falling) @ directions.mT
    return _weights(model, first, last, W, -slope * centres)


def traps(model: nn.Module, prior: Prior, *, batch: int, generator: torch.Generator) -> Weights:
    """Random directions with a random centre each, steep enough that an example is in a trap once
    in ``batch``.
    """
    first, last = layers_of(model)
    m, n = model.get_parameter(f"{first}.weight").shape
    mean, covariance = centre_and_spread(prior)
    h = torch.randn(m, n, generator=generator, dtype=torch.float64)
    h = h / h.norm(dim=1, keepdim=True)
    deviation = ((h @ covariance) * h).sum(1).sqrt()
    place = torch.rand(m, generator=generator, dtype=torch.float64) * 0.8 + 0.1
    centres = h @ mean + deviation * torch.from_numpy(ndtri(place.numpy()))
    slope = 4 * batch / deviation
    return _weights(model, first, last, slope.unsqueeze(1) * h, -slope * centres)


def fishing(model: nn.Module, *, target: int, certainty: float = 30.0) -> Weights:
    """A classifier whose only row is that of class ``target``, which the bias makes impossible.

    The gradient at the hidden layer is (p_c - 1[y = c]) W_c: p_c is e^-certainty at most, so only
    class c counts.
    """
    _, last = layers_of(model)
    old = model.get_parameter(f"{last}.weight").detach()
    if not 0 <= target < len(old):
        raise ValueError(f"expected a class {target=} in 0..{len(old) - 1}")
    W, bias = torch.zeros_like(old), torch.full_like(old[:, 0], certainty)
    W[target], bias[target] = 1.0 / old.shape[1] ** 0.5, 0.0
    return {f"{last}.weight": W, f"{last}.bias": bias}


def isolating(
    model: nn.Module, canaries: Float[Tensor, "k *shape"], others: Float[Tensor, "b *shape"]
) -> Weights:
    """A neuron for each canary that is at its centre there and closed for every other input: for an
    audit.

    Neuron i measures (x_i - mean) x. With the head scaled by ``HEAD``, the gradient of canary i is
    row i of the first weight and its bias, to 1 / ``HEAD``, and the other examples have nothing
    there: the clip leaves C along a direction of the canary's own. Canaries may have any label but
    the last two, which their neurons make certain. Neurons beyond the canaries are closed. Raises
    ValueError for more canaries than neurons, and for a canary that no hyperplane of this kind
    separates.
    """
    first, last = layers_of(model)
    m, n = model.get_parameter(f"{first}.weight").shape
    x, rest = canaries.double().flatten(1), others.double().flatten(1)
    if not 0 < len(x) <= m:
        raise ValueError(f"expected 1 to {m} canaries, one for each neuron, got {len(x)}")
    h = x - rest.mean(0)
    products = torch.cat(
        [h @ x.mT - torch.diag(torch.full((len(x),), math.inf)).to(x), h @ rest.mT], dim=1
    )
    centres = (h * x).sum(1)
    margin = centres - products.amax(1)
    if not bool((margin > 0).all()):
        raise ValueError(
            f"canary {int(margin.argmin())} lies between other inputs: take canaries farther out"
        )
    slope = CLOSED / margin
    W, b = torch.zeros(m, n, dtype=x.dtype), torch.full((m,), -CLOSED, dtype=x.dtype)
    W[: len(x)], b[: len(x)] = slope.unsqueeze(1) * h, -slope * centres
    made = _weights(model, first, last, W, b)
    made[f"{last}.weight"] *= HEAD
    return made


def _weights(model: nn.Module, first: str, last: str, W: Tensor, b: Tensor) -> Weights:
    like = model.get_parameter(f"{first}.weight")
    classes = len(model.get_parameter(f"{last}.bias"))
    made = {
        f"{first}.weight": W,
        f"{first}.bias": b,
        f"{last}.weight": _reading_head(len(b), classes),
        f"{last}.bias": torch.zeros(classes),
    }
    return {name: value.to(like) for name, value in made.items()}
