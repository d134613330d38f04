"""Client-level privacy (DP-FedAvg): the unit is a client, whose whole update is clipped.

    client    local training without clip -> mean update -> clip (McMahan et al. 2018, Alg. 1)
    server    clipped updates of a Poisson sample of clients -> sum -> noise

Symbols: v the accumulated sum of gradients of the local steps, B the public expected batch, C the
clip norm. u = v / B, times min(1, C / ||u||). It differs from the paper in its units: u is in those
of a gradient, -(W - W_t) / (local learning rate), so that the server's optimizer takes it as it
takes gradients. With one learning rate for both, the server's step is the mean of the clients'
changes of W.

The clip norm may follow a quantile of the updates' norms, privately (Andrew et al. 2021, Alg. 1):
gamma the quantile, C_t the clip norm, b_i = 1 where the norm of update i is at most C_t, m the
expected number of clients in a round, sigma_b the deviation of the noise in the count, eta the
learning rate of log C.

    count      sum_i (b_i - 1/2) + N(0, sigma_b^2)        one client moves it by 1/2
    fraction   count / m + 1/2
    update     C_{t+1} = C_t exp(-eta (fraction - gamma))

Both releases of a round read the same clients. Together they are one Gaussian mechanism of noise
multiplier z, with 1 / z^2 = 1 / z_sum^2 + 1 / (2 sigma_b)^2: the ledger is charged with z, and the
sum gets z_sum > z. The divisor m is public and fixed, as in the paper.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from fedlsg.config.mechanisms import gaussian
from fedlsg.frame import Frame
from fedlsg.gradients import LossFunction
from fedlsg.privacy import Ledger
from fedlsg.privacy.clip import clipped_sum
from fedlsg.privacy.mechanism import LARGEST_CLIP_NORM, SMALLEST_CLIP_NORM, Mechanism, add_noise
from fedlsg.privacy.run_ledger import ClientCharges
from fedlsg.randomness import SecretStream
from fedlsg.training import Batch, LocalTraining
from fedlsg.training.client_round import AddNoise, client_step

COUNT_SENSITIVITY = 0.5
"""How far one client moves the centred count: b - 1/2 is -1/2 or 1/2, and 0 without the client."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    """A clip norm that follows a quantile; symbols of the module docstring.

    quantile: gamma.
    rate: eta.
    count_noise: sigma_b, in clients.
    expected_clients: m.
    """

    quantile: float
    rate: float
    count_noise: float
    expected_clients: float

    @property
    def count_multiplier(self) -> float:
        """Noise over sensitivity of the count: 2 sigma_b."""
        return self.count_noise / COUNT_SENSITIVITY

    def sum_multiplier(self, noise_multiplier: float) -> float:
        """z_sum, so that count and sum together have the noise multiplier z.

        Raises ValueError where the count alone has less noise than z: nothing is left for the sum.
        """
        rest = noise_multiplier**-2 - self.count_multiplier**-2
        if rest <= 0:
            raise ValueError(
                f"clip_count_noise={self.count_noise:g} is a noise multiplier of "
                f"{self.count_multiplier:.3g} for the count alone, and both releases together need "
                f"{noise_multiplier:.3g}: raise clip_count_noise above "
                f"{noise_multiplier * COUNT_SENSITIVITY:.3g}"
            )
        # Rounded up by a relative 1e-12: float64 must not leave the pair below z.
        return float(rest**-0.5) * (1 + 1e-12)

    def next_norm(self, clip_norm: float, within: int, clients: int, noise: SecretStream) -> float:
        """C_{t+1}, from the noisy count of clients within the clip.

        within: clients of the round with a norm of at most ``clip_norm``.
        clients: all clients of the round. Both are secret.
        """
        centred = torch.tensor([within - COUNT_SENSITIVITY * clients], dtype=torch.float64)
        count = float(gaussian(centred, self.count_noise, noise))
        fraction = count / self.expected_clients + COUNT_SENSITIVITY
        moved = clip_norm * math.exp(-self.rate * (fraction - self.quantile))
        return min(max(moved, SMALLEST_CLIP_NORM), LARGEST_CLIP_NORM)


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerNoise:
    """What a server needs to add the noise of client-level privacy.

    ledger: of ``SERVER``, for all clients.
    budget: (epsilon, delta) that the ledger must not exceed; None without one.
    stream: gives a secret stream by purpose and round.
    adaptive: of the clip norm; None for a fixed one.
    reproducible: whether the streams come from the run's seed: NOT PRIVATE.
    """

    ledger: ClientCharges | Ledger
    budget: tuple[float, float] | None
    stream: Callable[[str, int], SecretStream]
    adaptive: AdaptiveClip | None = None
    reproducible: bool = False


def client_update(
    model: nn.Module,
    batch: Batch,
    loss_fn: LossFunction,
    *,
    frame: Frame,
    mechanism: Mechanism,
    local: LocalTraining,
    noise: SecretStream,
    add: AddNoise | None = None,
    train: Callable[..., Tensor] = client_step,
    **given: Any,
) -> Float64[Tensor, " kept"]:
    """A private payload: K plain local steps, the clip of the update as a whole, and noise.

    add: replaces ``add_noise``: noise on a grid, under a secure sum.
    train: the plain local steps, whose result is clipped whatever it is.
    given: the other arguments of ``client_step``, whose guarantees on the charge hold here.
    """
    plain = replace(mechanism, kind="none")
    values = train(
        model, batch, loss_fn, frame=frame, mechanism=plain, local=local, noise=noise, **given
    )
    update = clipped_update(
        values, frame=frame, mechanism=mechanism, expected_batch=local.expected_batch
    )
    return (add_noise if add is None else add)(update, mechanism, noise)


def clipped_update(
    values: Float[Tensor, " kept"], *, frame: Frame, mechanism: Mechanism, expected_batch: float
) -> Float64[Tensor, " kept"]:
    """v / B, clipped to C in L2 as a whole, or block by block.

    Guarantee: its norm is at most ``mechanism.sensitivity``. An update that is not finite gives
    zeros.
    values: v, of plain local training: any function of this client's data, the public state and
        fresh draws.
    expected_batch: B, a public constant that depends on no data.
    """
    update = values / expected_batch
    blocks = [part.unsqueeze(0) for part in update.split([block.kept for block in frame.blocks])]
    return clipped_sum(blocks, mechanism, wide=True)


def norm_of(values: Float[Tensor, " kept"], *, expected_batch: float) -> float:
    """||v / B|| before the clip; infinite for an update that is not finite."""
    norm = float((values / expected_batch).double().norm())
    return norm if norm == norm else float("inf")


def sum_mechanism(mechanism: Mechanism, adaptive: AdaptiveClip | None) -> Mechanism:
    """The mechanism of the sum alone: z_sum in place of z where a count is released as well."""
    if adaptive is None:
        return mechanism
    return replace(mechanism, noise_multiplier=adaptive.sum_multiplier(mechanism.noise_multiplier))


def release_round(
    updates: Sequence[Float[Tensor, " kept"]],
    *,
    frame: Frame,
    mechanism: Mechanism,
    expected_batch: float,
    noise: SecretStream,
    adaptive: AdaptiveClip | None = None,
) -> tuple[Float64[Tensor, " kept"], float]:
    """The noisy sum of the clipped updates, and the clip norm of the next round.

    The noise is N(0, (sigma C)^2) on every coordinate.
    updates: as received, in client order; v of ``clipped_update``.
    mechanism: its noise multiplier is z, of all that is returned. With ``adaptive`` the sum gets
        z_sum.
    Guarantee: one client moves the sum by at most ``mechanism.sensitivity`` in L2. The clip is
    here, on what was received: a codec may have rounded an update to a larger norm, and no client
    has to be trusted. Without any update the sum is noise alone: leaving it out would show that
    nobody took part.
    """
    total = torch.zeros(frame.kept, dtype=torch.float64)
    within = 0
    for received in updates:
        values = received.cpu()
        total += clipped_update(
            values, frame=frame, mechanism=mechanism, expected_batch=expected_batch
        )
        within += norm_of(values, expected_batch=expected_batch) <= mechanism.clip_norm
    noisy = add_noise(total, sum_mechanism(mechanism, adaptive), noise)
    if adaptive is None:
        return noisy, mechanism.clip_norm
    return noisy, adaptive.next_norm(mechanism.clip_norm, within, len(updates), noise)
