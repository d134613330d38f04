"""The unit mode of the audit: canary gradients through every round of a schedule, in one frame, on shipped code.

What is granted to the auditor is the most that the claim allows: it chooses the gradients, sees every round's noisy
sum before anything is made of it, and knows mask, clip, sigma and q. Which canaries are in, and the noise, are secret.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedlsg.attacks.audit.canaries import along, log_ratios, make_canaries, release, spread, step_weights
from fedlsg.discrete import SumTerms, add_modulo, plan_release
from fedlsg.frame import Frame
from fedlsg.privacy import Mechanism
from fedlsg.randomness import SecretStream, public_generator, reproducible_stream, secret_stream
from fedlsg.training import LocalTraining, accumulated_noise
from fedlsg.training.client import AddNoise

SILENT = {"one example": 1, "many examples": 64}
"""Clients whose examples have zero gradients: what they send is noise alone, however many they are."""
SILENT_ROUNDS = (32, 64)
Tick = Callable[[], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """What is audited: the mechanism as configured, in one frame, for ``rounds`` rounds.

    ``claimed``: the effective noise multiplier that the claim names, where it is not the mechanism's own.
    Under ``noise_share`` below 1 an output is the sum over as many clients as are assumed to survive; with ``sums``
    that of their integers with discrete noise, as the server decodes it.
    """

    model: nn.Module
    frame: Frame
    mechanism: Mechanism
    local: LocalTraining
    rounds: int
    claimed: float | None = None
    sums: SumTerms | None = None

    @property
    def summed(self) -> int:
        """Clients in one output."""
        return round(self.mechanism.noise_share**-2)

    @property
    def noise_std(self) -> float:
        """Claimed deviation of every value of an output."""
        local = self.local
        std = accumulated_noise(self.mechanism.noise_std, local.steps, local.momentum, local.pull)
        own = self.mechanism.effective_noise_multiplier(len(self.frame.blocks))
        ratio = 1.0 if self.claimed is None else self.claimed / own
        return ratio * std * math.sqrt(self.summed)


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """What the outputs say of each canary, which are ``included``, and the outputs of silent clients by name.

    scores: (m,) higher for canaries that were in. moves: (m,) how far the outputs went along the canary, over what a
    canary that is in adds on average: 1 is expected of those in and 0 of those out.
    """

    scores: Float[np.ndarray, " m"]
    moves: Float[np.ndarray, " m"]
    included: Bool[np.ndarray, " m"]
    silent: dict[str, Float[np.ndarray, "rounds kept"]]


def ticks(setting: Setting, canaries: int) -> int:
    """How often ``record`` reports progress."""
    return len(spread(canaries, setting.frame.kept)) * setting.rounds + len(SILENT) * silent_rounds(setting)


def silent_rounds(setting: Setting) -> int:
    """Outputs of each silent client: as many as there are rounds, within bounds."""
    low, high = SILENT_ROUNDS
    return min(max(setting.rounds, low), high)


def record(setting: Setting, canaries: int, *, seed: int | None, tick: Tick = lambda: None) -> Recording:
    """Draw which canaries are in, run every round, score each canary from the outputs.

    A ``seed`` repeats an audit with all of its draws and noise. Raises ValueError for fewer than 10 canaries.
    """
    if canaries < 10:
        raise ValueError(f"expected {canaries=} >= 10")
    counts = spread(canaries, setting.frame.kept)
    generator = public_generator(0 if seed is None else seed, "canaries")
    made = make_canaries(setting.frame, setting.mechanism, max(counts), generator)
    found, moved, included = [], [], []
    for client, count in enumerate(counts):
        inside = _stream(seed, "coins", client).bernoulli(count, 0.5)
        rows, clipped = made.gradients[:count], made.clipped[:count]
        outputs = rounds_of(setting, rows[inside], f"client {client}", seed, setting.rounds, tick)
        components = along(outputs, clipped)
        found.append(score(setting, components, clipped))
        moved.append(components.mean(0) / (setting.local.sample_rate * sum(step_weights(setting.local))))
        included.append(inside)
    empty = torch.zeros(max(SILENT.values()), setting.frame.kept)
    times = silent_rounds(setting)
    silent = {name: rounds_of(setting, empty[:n], name, seed, times, tick).numpy() for name, n in SILENT.items()}
    scores, moves, chosen = (torch.cat(parts).numpy() for parts in (found, moved, included))
    return Recording(scores=scores, moves=moves, included=chosen, silent=silent)


def score(
    setting: Setting, components: Float[Tensor, "rounds m"], clipped: Float[Tensor, "m kept"]
) -> Float[Tensor, " m"]:
    """Log likelihood ratio for one local step a round; the sum of the components for several."""
    if setting.local.steps > 1:
        return components.sum(0)
    return log_ratios(
        components, clipped.norm(dim=1), noise_std=setting.noise_std, sample_rate=setting.local.sample_rate
    )


def rounds_of(
    setting: Setting, rows: Float[Tensor, "n kept"], name: str, seed: int | None, rounds: int, tick: Tick
) -> Float[Tensor, "rounds kept"]:
    """Outputs of one client with these gradients, one a round, on the CPU; the steps are on the model's device."""
    outputs, rows = [], rows.to(next(setting.model.parameters()).device)
    for round in range(rounds):
        add, joined = joining(setting, round)
        sent = [
            release(
                rows if other == 0 else rows[:0],
                model=setting.model,
                frame=setting.frame,
                mechanism=setting.mechanism,
                local=setting.local,
                sampler=_stream(seed, "sampler", name, round, other),
                noise=_stream(seed, "noise", name, round, other),
                add=add,
            ).cpu()
            for other in range(setting.summed)
        ]
        outputs.append(joined(sent))
        tick()
    return torch.stack(outputs)


def joining(setting: Setting, round: int) -> tuple[AddNoise | None, Callable[[list[Tensor]], Tensor]]:
    """How the clients of one output add noise, and how the server makes the output from what they send."""
    if setting.sums is None:
        return None, lambda sent: reduce(torch.add, sent)
    frame = setting.frame
    planned = plan_release(setting.sums, setting.mechanism, values=frame.kept, blocks=len(frame.blocks))
    return (
        lambda total, mechanism, noise: planned.encode(total, noise, seed=0, round=round),
        lambda sent: planned.decode(add_modulo(sent, planned.grid), seed=0, round=round).float(),
    )


def _stream(seed: int | None, *labels: str | int) -> SecretStream:
    return secret_stream() if seed is None else reproducible_stream(seed, "audit", *labels)
