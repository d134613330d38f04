"""How far units move the outputs, and whether they are drawn as is claimed."""

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import chi2, norm

from fedlsg.attacks.audit.checks.check import SIGNIFICANCE, Check, Outputs, UnitClaim
from fedlsg.attacks.audit.checks.movement_bound import movement_log_p
from fedlsg.attacks.audit.played.games import Game

MAX_SQUARED_MOVE = 1.5
"""Of a direction, where the variance of its draws is stated: an excess beyond it is what
``check_movement`` finds, and must not excuse rounds that differ by too much.
"""


def check_canaries(
    moves: Float[np.ndarray, " m"],
    included: Bool[np.ndarray, " m"],
    claim: UnitClaim,
    *,
    rounds: int,
) -> Check:
    """Canaries that are in move the outputs no further than the claim lets them.

    ``moves`` as in ``unit_mode.Recording``: the mean of those in less that of those out is at most
    1. ``claim.noise``: of an output along a canary, over the canary's length.
    Nothing is estimated: if the claim is true, that difference is a sum of Bernoulli draws and of
    normal noise whose moments are known (``movement_log_p``). The bound is at most some ten times
    the tail itself, and costs power: 4.8 standard errors where a normal test needs 4.3. Assumes
    orthogonal canaries, as ``make_canaries`` gives under a joint clip.
    """
    members, others = int(included.sum()), int((~included).sum())
    if not members or not others:
        return Check(name="sensitivity", passed=True, says="no canaries of both kinds")
    moved = float(moves[included].mean() - moves[~included].mean())
    variance = (claim.noise / claim.mean_addition) ** 2 / rounds * (1 / members + 1 / others)
    log_p, error = movement_log_p(moved, members * rounds, claim, variance)
    says = (
        f"a canary moves the outputs by {moved:.3f} of what is claimed (standard error {error:.3f})"
    )
    passed = bool(log_p >= np.log(SIGNIFICANCE))
    return Check(name="sensitivity", passed=passed, says=says, error=float(error))


def check_equal_units(
    alike: Outputs,
    gradient: Float[np.ndarray, " kept"],
    claim: UnitClaim,
    *,
    units: int,
    sensitivity: float,
) -> Check:
    """n equal units move an output by at most n times the sensitivity, as often as q says.

    By the triangle inequality, in two directions, each with half of the significance: their own
    clipped ``gradient``; and the one that every other output goes, of which the others are asked
    how far they go in it. Many units are far above the noise, so that a small excess is found.
    Raises ValueError without outputs, or for a gradient of zeros.
    """
    outputs = np.asarray(alike, dtype=np.float64)
    if not len(outputs) or not np.any(gradient):
        raise ValueError("expected outputs with equal units, and their clipped gradient")
    halves = [(outputs, np.asarray(gradient, dtype=np.float64))]
    if len(outputs) > 1:
        halves.append((outputs[1::2], outputs[::2].mean(0)))
    reach = units * claim.mean_addition
    found = []
    for part, direction in halves:
        along = part @ direction / np.linalg.norm(direction)
        moved = float(along.mean()) / sensitivity / reach
        variance = (claim.noise / reach) ** 2 / len(part)
        log_p, error = movement_log_p(moved, units * len(part), claim, variance)
        found.append((float(log_p), float(error), moved))
    least_log_p, standard_error, moved = min(found)
    says = (
        f"{units} equal units move the outputs by {moved:.3f} of what is claimed (standard error "
        f"{standard_error:.3f})"
    )
    passed = least_log_p >= np.log(SIGNIFICANCE / 2)
    return Check(name="sensitivity of many", passed=bool(passed), says=says, error=standard_error)


def game_checks(game: Game, claim: UnitClaim) -> list[Check]:
    """No direction of a game is moved further than claimed, and its draws are new in each round."""
    reach = game.units * claim.mean_addition
    variance = (claim.noise / (reach * game.lengths)) ** 2
    moves = check_movement(game, claim, variance)
    if game.name != "parts" or claim.sample_rate == 1:
        return [moves]
    return [moves, check_fresh_draws(game, claim, variance)]


def check_movement(game: Game, claim: UnitClaim, noise_variance: Float[np.ndarray, " k"]) -> Check:
    """No direction of a game is moved further than claimed.

    noise_variance: of one round, in each direction.
    """
    rounds, k = game.moves.shape
    moved = game.moves.mean(0)
    log_p, error = movement_log_p(moved, game.units * rounds, claim, noise_variance / rounds)
    worst = int(log_p.argmin())
    says = (
        f"{game.units} units in each of {k} directions move the outputs by at most "
        f"{moved[worst]:.3f} of what is claimed (standard error {error[worst]:.3f})"
    )
    passed = bool(log_p.min() >= np.log(SIGNIFICANCE / k))
    name = f"sensitivity, {game.name}"
    return Check(name=name, passed=passed, says=says, error=float(error[worst]))


def check_fresh_draws(
    game: Game, claim: UnitClaim, noise_variance: Float[np.ndarray, " k"]
) -> Check:
    """Who takes part is drawn anew in each step, and for each unit by itself.

    The rounds of a direction then differ by Bernoulli draws and noise whose variances are known.
    Draws that are used again make them alike, draws that units share make them differ by more. A
    normal test of the mean square on both sides, with the fourth moment of the sum of both. The
    sum of all directions is tested, too, for draws that all units share.
    """
    rounds, k = game.moves.shape
    q = claim.sample_rate
    drawn = claim.draw_variance / game.units
    # of a direction that the clip shortens more, such as one of a part with a clip of its own
    squared_moves = np.square(game.moves.mean(0)) - (drawn + noise_variance) / rounds
    draw_variance = drawn * squared_moves.clip(0, MAX_SQUARED_MOVE)
    variance = draw_variance + noise_variance
    kurtosis = (draw_variance / variance) ** 2 * (1 - 6 * q * (1 - q)) / (q * (1 - q)) / game.units
    squares = np.square(game.moves - game.moves.mean(0)).sum(0) / variance
    ratio = float(squares.sum() / (rounds - 1) / k)
    error = float(np.sqrt((2 + np.maximum(kurtosis, 0)).sum() / (rounds - 1)) / k)
    together = game.moves.sum(1)
    total = float(np.square(together - together.mean()).sum() / variance.sum())
    p = min(2 * norm.sf(abs(ratio - 1) / error), 2 * chi2.sf(total, rounds - 1))
    reused = float((noise_variance / variance).mean())
    says = (
        f"rounds of one direction vary by {ratio:.3f} of what fresh draws and noise give (standard "
        f"error {error:.3f}); draws of one round used in all of them would give {reused:.3f}"
    )
    return Check(name="fresh draws", passed=bool(p >= SIGNIFICANCE / 2), says=says)
