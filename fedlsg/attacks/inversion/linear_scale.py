"""The scale that a first layer without a bias leaves open, from the rest of the model.

right = v x^T is the same for (v / t, t x). The other layers are not: of all t x, replayed through the client's own step
under a label, the one that gives what was received is the input. One number is searched for, so no gradient is needed.
"""

import math

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from fedlsg.attacks.guess import DoesNotApply, Guess
from fedlsg.attacks.observation import Observation
from fedlsg.attacks.replay import replay


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
