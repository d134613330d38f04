"""The unit mode of the audit: canary units through all rounds of a schedule, on shipped code.

A unit is an example, or at client level a client. The auditor may do the most that the claim
allows: it chooses the gradients (or updates), sees every output of ``outputs`` before anything is
made of it, and knows mask, clip, sigma and q. Which canaries are in, and the noise, are secret.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedlsg.attacks.audit.played.canaries import make_canaries
from fedlsg.attacks.audit.played.coverage import count_paths
from fedlsg.attacks.audit.played.games import (
    Count,
    Game,
    GamePlan,
    Tick,
    counts_of,
    games_of,
    play,
    rounds_of,
    rounds_of_counts,
    stream_of,
)
from fedlsg.attacks.audit.played.outputs import Output
from fedlsg.attacks.audit.played.sample_sizes import (
    canaries_of_series,
    equal_units,
    max_units,
    silent_rounds,
)
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.randomness import public_generator

SILENT = {"one": 1, "many": 64}
"""Numbers of silent units, whose gradients or updates are zeros: their outputs are noise alone."""
EQUAL_UNIT_ROUNDS = 16
"""Outputs with equal units, for ``check_equal_units``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """What the outputs say of each canary, and the outputs of silent units by name.

    included: (m,) which canaries were in.
    scores: (m,) higher for canaries that were in.
    moves: (m,) how far the outputs went along the canary, over what a canary that is in may add on
        average: 1 is expected of those in and 0 of those out.
    silent_outputs: outputs of silent units, one a row.
    grid: those of a secure sum as they are added up, before the rotation is undone.
    equal_unit_outputs: outputs in which ``equal_units`` took part, at the sample rate.
    equal_unit_gradient: the clipped gradient of one of them.
    games, count: the records of ``games.play`` and ``games.counts_of``.
    paths: how often each path ran (``coverage``).
    """

    scores: Float[np.ndarray, " m"]
    moves: Float[np.ndarray, " m"]
    included: Bool[np.ndarray, " m"]
    silent_outputs: dict[str, Float[np.ndarray, "rounds kept"]]
    grid: dict[str, Float[np.ndarray, "rounds kept"]]
    equal_unit_outputs: Float[np.ndarray, "rounds kept"]
    equal_unit_gradient: Float[np.ndarray, " kept"]
    equal_units: int
    games: tuple[Game, ...]
    count: Count | None
    paths: Counter[str]


def ticks(setting: AuditSetting, canaries: int, seed: int | None = None) -> int:
    """How often ``record`` reports progress."""
    outputs = len(canaries_of_series(setting, canaries)) * setting.rounds
    silent = len(SILENT) * silent_rounds(setting)
    games = sum(game.rounds for game in games_of(setting, seed))
    return outputs + silent + EQUAL_UNIT_ROUNDS + games + rounds_of_counts(setting)


def record(
    setting: AuditSetting,
    canaries: int,
    *,
    seed: int | None,
    tick: Tick = lambda: None,
    plans: Sequence[GamePlan] | None = None,
) -> Recording:
    """Draw which canaries are in, run every round, score each canary from the outputs.

    A ``seed`` repeats an audit with all of its draws and noise. ``plans``: the games to play, by
    default all of ``games_of``. Raises ValueError for fewer than 10 canaries.
    """
    if canaries < 10:
        raise ValueError(f"expected {canaries=} >= 10")
    plans = games_of(setting, seed) if plans is None else plans
    with count_paths() as (paths, switch):

        def after_output() -> None:
            tick()
            switch()

        return _record(setting, canaries, seed, after_output, paths, plans)


def _record(
    setting: AuditSetting,
    canaries: int,
    seed: int | None,
    tick: Tick,
    paths: Counter[str],
    plans: Sequence[GamePlan],
) -> Recording:
    counts = canaries_of_series(setting, canaries)
    generator = public_generator(0 if seed is None else seed, "canaries")
    made = make_canaries(setting, max(counts), generator)
    scores, moves, included = [], [], []
    for series, count in enumerate(counts):
        inside = stream_of(seed, "coins", series).bernoulli(count, 0.5)
        rows, clipped = made.gradients[:count], made.clipped[:count]
        outputs = values_of(
            rounds_of(
                setting,
                rows[inside],
                f"series {series}",
                seed,
                setting.rounds,
                tick,
            )
        )
        components = along(outputs, clipped)
        scores.append(score(setting, components, clipped))
        moves.append(components.mean(0) / (setting.stated.sample_rate * sum(setting.weights)))
        included.append(inside)
    units = equal_units(setting)
    canary = make_canaries(setting, 1, generator)  # one that no series has
    equal = canary.gradients.expand(units, -1)
    equal_outputs = rounds_of(setting, equal, "alike", seed, EQUAL_UNIT_ROUNDS, tick)
    silent, grid = silence(setting, seed, tick)
    games = tuple(play(setting, plan, seed, tick) for plan in plans)
    return Recording(
        scores=torch.cat(scores).numpy(),
        moves=torch.cat(moves).numpy(),
        included=torch.cat(included).numpy(),
        silent_outputs=silent,
        grid=grid,
        equal_unit_outputs=values_of(equal_outputs).numpy(),
        equal_units=units,
        equal_unit_gradient=canary.clipped[0].numpy(),
        games=games,
        count=counts_of(setting, seed, tick),
        paths=paths,
    )


Outputs = dict[str, Float[np.ndarray, "rounds kept"]]


def silence(setting: AuditSetting, seed: int | None, tick: Tick) -> tuple[Outputs, Outputs]:
    """Outputs of silent units by name; those of a secure sum also before the rotation is undone.

    There a noise that was drawn once and used again can be seen: after each round's own rotation
    it looks fresh.
    """
    values, grids, rounds = Outputs(), Outputs(), silent_rounds(setting)
    for name, count in SILENT.items():
        count = min(count, max_units(setting) or count)
        units = f"{name} {setting.stated.unit}{'s' if name == 'many' else ''}"
        zeros = torch.zeros(count, setting.frame.kept)
        outputs = rounds_of(setting, zeros, units, seed, rounds, tick)
        values[units] = values_of(outputs).numpy()
        if setting.sums is not None:
            grid = [output.grid for output in outputs if output.grid is not None]
            grids[units] = torch.stack(grid).numpy()
    return values, grids


def score(
    setting: AuditSetting, components: Float[Tensor, "rounds m"], clipped: Float[Tensor, "m kept"]
) -> Float[Tensor, " m"]:
    """Log likelihood ratio for one release a round; the sum of the components for several."""
    if len(setting.weights) > 1:
        return components.sum(0)
    return log_ratios(
        components,
        clipped.norm(dim=1),
        noise_std=setting.noise_std,
        sample_rate=setting.stated.sample_rate,
    )


def values_of(outputs: list[Output]) -> Float[Tensor, "rounds kept"]:
    """The values of outputs, one a row."""
    return torch.stack([output.values for output in outputs])


def along(
    outputs: Float[Tensor, "rounds kept"], clipped: Float[Tensor, "m kept"]
) -> Float[Tensor, "rounds m"]:
    """The component of each output along each canary.

    In units of what the canary adds when it takes part.
    """
    products: Tensor = (outputs @ clipped.T).double()
    return products / clipped.double().square().sum(1)


def log_ratios(
    components: Float[Tensor, "rounds m"],
    lengths: Float[Tensor, "*rounds m"],
    *,
    noise_std: float,
    sample_rate: float,
) -> Float[Tensor, " m"]:
    """Log likelihood ratio of each canary, in against out, over all rounds.

    By the claimed parameters.
    lengths: of what each canary adds: one for all rounds, or one for each.

    With s = length / noise_std the component y is N(b, 1 / s^2) where b says whether the canary
    took part, and the ratio is the sum over rounds of log(1 - q + q exp(s^2 (y - 1/2))). No score
    is better for one local step if the canaries are orthogonal and the claim is true.
    """
    exponent = (lengths.double() / noise_std).square() * (components - 0.5)
    if sample_rate == 1:
        return exponent.sum(0)
    absent = torch.full_like(exponent, math.log1p(-sample_rate))
    return torch.logaddexp(absent, exponent + math.log(sample_rate)).sum(0)
