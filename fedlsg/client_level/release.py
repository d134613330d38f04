"""What a trusted server releases of a round: the noisy sum of clipped updates and, from a noisy count, the next C."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fedlsg.client_level.adaptive_clip import AdaptiveClip
from fedlsg.client_level.update import clipped_update, norm_of
from fedlsg.frame import Frame
from fedlsg.privacy.mechanism import Mechanism, add_noise
from fedlsg.randomness import SecretStream


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
    """The sum of the clipped updates plus N(0, (sigma C)^2) on every coordinate, and the clip norm of the next round.

    ``updates``: what arrived, in client order, as ``clipped_update`` takes it. ``mechanism.noise_multiplier`` is z, of
    all that is returned: with ``adaptive`` the sum gets z_sum.
    Guarantee: one client moves the sum by at most ``mechanism.sensitivity`` in L2. The clip is here, on what was
    received: a codec may have rounded an update to a larger norm, and no client needs to be believed. No update at all
    is a sum as well, of noise alone: to skip it would show that nobody took part.
    """
    total, within = torch.zeros(frame.kept, dtype=torch.float64), 0
    for received in updates:
        values = received.cpu()
        total += clipped_update(values, frame=frame, mechanism=mechanism, expected_batch=expected_batch)
        within += norm_of(values, expected_batch=expected_batch) <= mechanism.clip_norm
    noisy = add_noise(total, sum_mechanism(mechanism, adaptive), noise)
    if adaptive is None:
        return noisy, mechanism.clip_norm
    return noisy, adaptive.next_norm(mechanism.clip_norm, within, len(updates), noise)
