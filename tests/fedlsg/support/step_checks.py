"""What must hold of a private step, each as a function that is True where all is well.

They run on repeatable streams, so they do not flake, and look the parts of the step up where the
package does, so that a test can plant a mistake there.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

import fedlsg.method
from fedlsg.frame import Frame
from fedlsg.masks.mask import Mask
from fedlsg.method import LocalTraining, aggregate
from fedlsg.privacy.clip import clipped_sum
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.randomness import SecretStream, reproducible_stream
from tests.fedlsg.support.step_oracle import CLIP_ONLY, DENSE, EMPTY, NOISY, naive_step, problem

DRAWS = 300

Streams = Callable[[int], SecretStream]
Lift = Callable[[Frame, Tensor], Tensor]


def streams(label: int) -> SecretStream:
    """A stream of its own for each label."""
    return reproducible_stream(0, "planted", label)


def flat(frame: Frame, values: Tensor) -> Tensor:
    """Kept values in the frame's flat coordinates."""
    return torch.cat([block.flatten() for block in frame.unflatten(values)])


def noise_lies_where_the_mask_keeps(lift: Lift = flat) -> bool:
    """Every kept coordinate has noise of the full deviation, every other one none."""
    p = problem(Mask(kind="uniform", sparsity=0.5))
    noise = (
        torch.stack([lift(p.frame, p.step(NOISY, EMPTY, seed)) for seed in range(DRAWS)])
        / NOISY.noise_std
    )
    kept = torch.zeros(p.frame.size, dtype=torch.bool).index_fill(0, p.frame.indices, True)
    full = ((noise[:, kept].square().mean(0) - 1).abs() < 6 * math.sqrt(2 / DRAWS)).all()
    return bool(full and (noise[:, ~kept] == 0).all())


def noise_is_fresh_in_every_step() -> bool:
    """The noise of three steps adds up to variance 3, not 9."""
    p = problem()
    noise = (
        torch.cat([p.step(NOISY, replace(EMPTY, steps=3), seed) for seed in range(DRAWS)])
        / NOISY.noise_std
    )
    return abs(float(noise.square().mean()) / 3 - 1) < 0.05


def noise_is_fresh_for_every_client(streams: Streams = streams) -> bool:
    """The noise of three clients adds up to variance 3, not 9."""
    p = problem()
    sums = [
        aggregate([p.step(NOISY, EMPTY, noise=streams(3 * draw + client)) for client in range(3)])
        for draw in range(DRAWS)
    ]
    return abs(float((torch.cat(sums) / NOISY.noise_std).square().mean()) / 3 - 1) < 0.05


def twice_the_data_gives_twice_the_sum() -> bool:
    """Nothing that is sent was divided by a size of the batch."""
    p = problem()
    twice = replace(p, inputs=p.inputs.repeat(2, 1), targets=p.targets.repeat(2))
    return torch.allclose(twice.step(CLIP_ONLY), 2 * p.step(CLIP_ONLY))


def two_clients_count_twice() -> bool:
    """The server divides by a constant, so the sum does not know how many answered."""
    values = problem().step(CLIP_ONLY)
    return torch.equal(fedlsg.method.aggregate([values, values]), 2 * values)


def company_changes_no_contribution(loss_fn=None) -> bool:
    """An example counts the same alone as in a batch."""
    p = problem()
    p.loss_fn = loss_fn or p.loss_fn
    together = p.step(CLIP_ONLY)
    one_by_one = p.step(CLIP_ONLY, LocalTraining(microbatch_size=1))
    return torch.allclose(together, one_by_one)


def the_step_equals_the_naive_loop(mechanism: Mechanism = CLIP_ONLY) -> bool:
    p = problem()
    wanted, _ = naive_step(p, mechanism, LocalTraining(), sampler=streams(0), noise=streams(1))
    return torch.allclose(p.step(mechanism), wanted, rtol=1e-9, atol=1e-11)


def float32_contributions_stay_within_the_clip() -> bool:
    """In exact arithmetic, over a thousand rows."""
    rows = torch.randn(1000, 7, generator=torch.Generator().manual_seed(0))
    sums = [clipped_sum([row.unsqueeze(0)], CLIP_ONLY) for row in rows]
    return all(
        sum(Fraction(float(x)) ** 2 for x in s) <= Fraction(CLIP_ONLY.clip_norm) ** 2 for s in sums
    )


def the_ledger_is_written_before_the_noise_is_drawn() -> bool:
    events: list[str] = []

    class Stream(SecretStream):
        def words(self, count: int, *, bits: int = 64) -> np.ndarray:
            events.append("noise")
            return super().words(count, bits=bits)

    problem().step(NOISY, noise=Stream(bytes(32)), charge=lambda: events.append("charge"))
    return events[:1] == ["charge"] and set(events[1:]) == {"noise"}


def the_ledger_is_charged_before_the_batch_is_drawn(mechanism: Mechanism = NOISY) -> bool:
    """So that a failure of training, which may depend on the batch, leaves the charge."""
    events: list[str] = []

    class Stream(SecretStream):
        def bernoulli(self, count: int, probability: float) -> Tensor:
            events.append("batch")
            return super().bernoulli(count, probability)

    problem(Mask(), DENSE).step(
        mechanism, sampler=Stream(bytes(32)), charge=lambda: events.append("charge")
    )
    return events == ["charge", "batch"]
