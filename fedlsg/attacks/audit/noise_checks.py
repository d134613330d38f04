"""Checks of the noise itself, on outputs of units whose gradients are zero: those outputs are all
noise.

They see what no score can: noise that is missing on some coordinates, drawn once and used again,
smaller where no unit took part; and a unit that moves the outputs too far, in whatever direction.
Every check is a test whose probability of accusing correct code is at most its ``significance``: 0
for events that correct code does not give. Recorded outputs and what is stated are all that they
read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import beta, binom, chi2, kstest, norm, poisson

from fedlsg.attacks.audit.games import Count, Game
from fedlsg.attacks.audit.setting import Setting, found_ratio
from fedlsg.attacks.audit.unit_mode import Recording

SIGNIFICANCE = 1e-5
SHAPE_SAMPLE = 100_000
TAIL = 3.0
"""Deviations from which on values are counted as a tail."""
CELLS, LAST_CELL, FEWEST_OUTPUTS = 256, 256 * 8, 8
"""Cells a deviation in which sizes of values are counted, the last one holds all that are larger;
outputs that are compared, at the fewest.
"""
LAST_DIGITS = 6
"""Binary digits of a float32 that ``digits`` looks at: fresh noise has all of them 0 in at most
4 % of its values, sums of a few draws included.
"""
SLOPES = np.linspace(0.05, 12.0, 240)
"""Of the exponentials tried by ``displacement``, in 1 / standard error."""

Outputs = Float[np.ndarray, "rounds kept"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: whether it passed, and what was found, in words.

    significance: the probability with which correct code is accused, at most.
    """

    name: str
    passed: bool
    says: str
    significance: float = SIGNIFICANCE


def unit_checks(recording: Recording, setting: Setting) -> tuple[Check, ...]:
    """All checks of the unit mode: what was recorded, held to what ``setting.stated`` lets it
    be.
    """
    measured = (
        max(float(np.square(rows, dtype=np.float64).mean()) for rows in recording.silent.values())
        ** 0.5
    )
    claim = {
        "sample_rate": setting.stated.sample_rate,
        "noise": max(setting.noise_std, measured) / setting.sensitivity,  # more noise is no breach
        "weights": setting.weights,
    }
    return (
        displacement(recording.moves, recording.included, rounds=setting.rounds, **claim),
        length(
            recording.alike,
            recording.way,
            units=recording.units,
            sensitivity=setting.sensitivity,
            **claim,
        ),
        *noise_checks(recording.silent, kept=setting.frame.kept, noise_std=setting.noise_std),
        *([] if setting.sums else [digits(recording.silent)]),  # a secure sum's are whole numbers
        *grid_checks(recording.grid, noise_std=setting.noise_std),
        *(check for game in recording.games for check in game_checks(game, **claim)),
        *pass_checks(recording.games, setting),
        *(
            []
            if recording.count is None
            else count_checks(recording.silent, recording.count, setting)
        ),
    )


def game_checks(
    game: Game, *, sample_rate: float, noise: float, weights: Sequence[float]
) -> list[Check]:
    """No direction of a game is moved further than claimed, and its draws are new in each round."""
    rounds, k = game.moves.shape
    reach, moved = game.units * sample_rate * sum(weights), game.moves.mean(0)
    spread = (noise / (reach * game.lengths)) ** 2
    log_p, error = further(
        moved, game.units * rounds, sample_rate=sample_rate, weights=weights, spread=spread / rounds
    )
    worst = int(log_p.argmin())
    says = (
        f"{game.units} units in each of {k} directions move the outputs by at most "
        f"{moved[worst]:.3f} of what is claimed (standard error {error[worst]:.3f})"
    )
    passed = bool(log_p.min() >= np.log(SIGNIFICANCE / k))
    moves = Check(name=f"sensitivity, {game.name}", passed=passed, says=says)
    if game.name != "parts" or sample_rate == 1:
        return [moves]
    return [moves, fresh_draws(game, spread, sample_rate=sample_rate, weights=weights)]


def fresh_draws(
    game: Game, spread: Float[np.ndarray, " k"], *, sample_rate: float, weights: Sequence[float]
) -> Check:
    """Who takes part is drawn anew in each step, and for each unit by itself.

    The rounds of a direction then differ by Bernoulli draws and noise whose variances are known.
    Draws that are used again make them alike, draws that units share make them differ by more. A
    normal test of the mean square on both sides, with the fourth moment of the sum of both. The
    sum of all directions is tested, too, for draws that all units share.
    """
    rounds, k = game.moves.shape
    q, shares = sample_rate, np.asarray(weights) / (sample_rate * sum(weights))
    drawn = q * (1 - q) * float(np.square(shares).sum()) / game.units
    # of a direction that the clip shortens more, such as one of a part with a clip of its own
    drawn = drawn * (np.square(game.moves.mean(0)) - (drawn + spread) / rounds).clip(0, 1.5)
    variance = drawn + spread
    kurtosis = (drawn / variance) ** 2 * (1 - 6 * q * (1 - q)) / (q * (1 - q)) / game.units
    squares = np.square(game.moves - game.moves.mean(0)).sum(0) / variance
    ratio = float(squares.sum() / (rounds - 1) / k)
    error = float(np.sqrt((2 + np.maximum(kurtosis, 0)).sum() / (rounds - 1)) / k)
    together = game.moves.sum(1)
    total = float(np.square(together - together.mean()).sum() / variance.sum())
    p = min(2 * norm.sf(abs(ratio - 1) / error), 2 * chi2.sf(total, rounds - 1))
    reused = float((spread / variance).mean())
    says = (
        f"rounds of one direction vary by {ratio:.3f} of what fresh draws and noise give (standard "
        f"error {error:.3f}); draws of one round used in all of them would give {reused:.3f}"
    )
    return Check(name="fresh draws", passed=bool(p >= SIGNIFICANCE / 2), says=says)


def pass_checks(games: Sequence[Game], setting: Setting) -> list[Check]:
    """Outputs of clients that share a pass with another one's units are noise, as if alone: where
    only a sum is private, each client's share of its noise.
    """
    checks, noise = [], setting.noise_std / setting.stated.honest**0.5
    for game in games:
        if game.elsewhere is not None:
            rows = np.asarray(game.elsewhere, dtype=np.float64) / noise
            checks += [
                replace(check, name=f"{check.name}, next to {game.name}")
                for check in (present(rows), deviation("all", rows), fresh(rows), excess(rows))
            ]
    return checks


def excess(rows: Outputs) -> Check:
    """Nothing but the claimed noise is in outputs of clients whose examples have no gradient.

    The largest mean square of an output, against chi-squared of the noise that all of them have.
    """
    squares = np.square(rows).sum(1)
    usual = max(1.0, float(np.median(squares)) / rows.shape[1])
    p = float(chi2.sf(squares.max() / usual, rows.shape[1])) * len(rows)
    says = f"the largest output is {np.sqrt(squares.max() / rows.shape[1]):.3f} noise deviations"
    return Check(name="nothing of other clients", passed=bool(p >= SIGNIFICANCE), says=says)


def digits(silent: Mapping[str, Outputs]) -> Check:
    """Noise has all of the digits of its type: what numbers of 16 bits round off would show the
    sum.

    A sum of such noises has more digits than one of them, and its last ones are still 0 (of 30
    clients those of nine values in ten).
    """
    values = np.concatenate(
        [np.asarray(rows, dtype=np.float32).ravel() for rows in silent.values()]
    )
    last = values[values != 0].view(np.uint32) & (2**LAST_DIGITS - 1)
    share = float(np.mean(last == 0)) if len(last) else 0.0
    says = (
        f"the last {LAST_DIGITS} of 24 binary digits are 0 in {100 * share:.2g} % of the values "
        f"({100 / 2**LAST_DIGITS:.2g} % by chance)"
    )
    return Check(name="digits of the noise", passed=share < 0.5, says=says)


def count_checks(silent: Mapping[str, Outputs], count: Count, setting: Setting) -> list[Check]:
    """The noisy count of an adaptive clip: it is a release of its own, next to the sum.

    Together they have the noise multiplier z with 1 / z^2 = 1 / z_sum^2 + 1 / (2 sigma_b)^2, both
    measured, each at half of the significance; and one client moves the count by 1/2 at most.
    """
    adaptive, q = setting.adaptive, setting.stated.sample_rate
    assert adaptive is not None
    rows = np.concatenate(list(silent.values())) / setting.sensitivity
    level = SIGNIFICANCE / 2
    of_sum = np.sqrt(float(np.square(rows).sum()) / chi2.isf(1 - level, rows.size))
    squares = float(np.square(count.empty - count.empty.mean()).sum())
    of_count = np.sqrt(squares / chi2.isf(1 - level, len(count.empty) - 1)) * 2
    both = 0.0 if not of_count else float((of_sum**-2.0 + of_count**-2.0) ** -0.5)
    needed = setting.stated.noise_multiplier
    checks = [
        Check(
            name="noise of the count",
            passed=both >= needed,
            says=f"sum and count together have a noise multiplier of at most {both:.4f}, the claim "
            f"needs {needed:.4f}",
        ),
        replace(unrepeated(count.empty[None]), name="fresh noise of the count"),
    ]
    noise = max(adaptive.count_noise, float(count.empty.std())) * 2
    for name, moved in count.moved.items():
        reach = count.units * q / 2
        far = np.array([abs(float(moved.mean())) / reach])
        log_p, error = further(
            far,
            count.units * len(moved),
            sample_rate=q,
            weights=[1.0],
            spread=(noise / 2 / reach) ** 2 / len(moved),
        )
        says = f"a client moves the count by {far[0] / 2:.3f} (standard error {error / 2:.3f})"
        passed = bool(log_p.min() >= np.log(level))
        checks.append(Check(name=f"sensitivity, {name}", passed=passed, says=says))
    return checks


def grid_checks(grid: Mapping[str, Outputs], *, noise_std: float) -> list[Check]:
    """What a rotation hides, on the integers that are added up: noise that is missing, or used
    twice.
    """
    if not grid:
        return []
    rows = (
        np.concatenate([np.asarray(some, dtype=np.float64) for some in grid.values()]) / noise_std
    )
    checks = [check(rows) for check in (everywhere, fresh, unrepeated)]
    return [replace(check, name=f"{check.name}, on the grid") for check in checks]


def noise_checks(silent: Mapping[str, Outputs], *, kept: int, noise_std: float) -> list[Check]:
    """All checks on silent clients' outputs, by the client's name; ``noise_std`` is the claimed
    deviation of a value.

    Raises ValueError for no outputs.
    """
    if not silent or any(not len(rows) for rows in silent.values()):
        raise ValueError("expected at least one output of at least one silent client")
    misshapen = [name for name, rows in silent.items() if rows.shape[1] != kept]
    if misshapen:
        says = f"outputs of {misshapen} do not have {kept} values"
        return [Check(name="coordinates", passed=False, says=says, significance=0.0)]
    scaled = {name: np.asarray(rows, dtype=np.float64) / noise_std for name, rows in silent.items()}
    every = np.concatenate(list(scaled.values()))
    return [
        present(every),
        everywhere(every),
        *(deviation(name, rows) for name, rows in {**scaled, "all": every}.items()),
        fresh(every),
        unrepeated(every),
        normal(every.ravel()),
        tails(every.ravel()),
        unequal(every),
    ]


def displacement(
    moves: Float[np.ndarray, " m"],
    included: Bool[np.ndarray, " m"],
    *,
    sample_rate: float,
    rounds: int,
    noise: float,
    weights: Sequence[float] = (1.0,),
) -> Check:
    """Canaries that are in move the outputs no further than the claimed sensitivity and sample rate
    let them.

    ``moves`` as in ``unit_mode.Recording``: the mean of those in less that of those out is at most
    1. ``noise``: the claimed deviation of an output along a canary, over the canary's length;
    ``weights``: those of the local steps.
    Nothing is estimated: if the claim is true, that difference is a sum of Bernoulli draws and of
    normal noise whose moments are known, and Chernoff's bound on its tail (any t > 0 in it gives
    one) holds for any number of canaries, rounds, and rate. It is at most some ten times the tail
    itself, and costs power: 4.8 standard errors where a normal test needs 4.3. Assumes orthogonal
    canaries, as ``shipped.make_canaries`` gives under a joint clip.
    """
    members, others = int(included.sum()), int((~included).sum())
    if not members or not others:
        return Check(name="sensitivity", passed=True, says="no canaries of both kinds")
    moved = float(moves[included].mean() - moves[~included].mean())
    spread = noise**2 / (rounds * (sample_rate * sum(weights)) ** 2) * (1 / members + 1 / others)
    log_p, error = further(
        moved, members * rounds, sample_rate=sample_rate, weights=weights, spread=spread
    )
    says = (
        f"a canary moves the outputs by {moved:.3f} of what is claimed (standard error {error:.3f})"
    )
    return Check(name="sensitivity", passed=bool(log_p >= np.log(SIGNIFICANCE)), says=says)


def length(
    alike: Outputs,
    way: Float[np.ndarray, " kept"],
    *,
    units: int,
    sensitivity: float,
    sample_rate: float,
    noise: float,
    weights: Sequence[float],
) -> Check:
    """n equal units move an output by n times the sensitivity at most, in any direction, and as
    often as q says.

    By the triangle inequality, in two directions, each with half of the significance: their own
    clipped gradient, which is ``way``; and the one that every other output goes, of which the
    others are asked how far they go in it. Many units are far above the noise, so that a small
    excess is found.
    """
    rows = np.asarray(alike, dtype=np.float64)
    guide, lengths = rows[::2].mean(0), []
    for part, direction in ((rows, np.asarray(way, dtype=np.float64)), (rows[1::2], guide)):
        norm = float(np.linalg.norm(direction))
        if norm and len(part):
            reach = units * sample_rate * sum(weights)
            moved = float((part @ direction).mean()) / norm / sensitivity / reach
            spread = noise**2 / reach**2
            spread /= len(part)
            lengths.append(
                (
                    *further(
                        moved,
                        units * len(part),
                        sample_rate=sample_rate,
                        weights=weights,
                        spread=spread,
                    ),
                    moved,
                )
            )
    log_p, error, moved = min(lengths)
    says = (
        f"{units} equal units move the outputs by {moved:.3f} of what is claimed (standard error "
        f"{error:.3f})"
    )
    return Check(
        name="sensitivity of many", passed=bool(log_p >= np.log(SIGNIFICANCE / 2)), says=says
    )


def further(
    moved: float | Float[np.ndarray, " k"],
    draws: int,
    *,
    sample_rate: float,
    weights: Sequence[float],
    spread: float | Float[np.ndarray, " k"],
) -> tuple[Float[np.ndarray, "*k"], Float[np.ndarray, "*k"]]:
    """Log of the bound on the probability of moving so far, and the standard error, if the claim is
    true.

    ``draws``: units times rounds, in each of which a unit takes part with probability q; the mean
    is 1. ``spread``: the variance from the noise.
    """
    shares = np.asarray(weights) / (sample_rate * sum(weights))
    drawn = sample_rate * (1 - sample_rate) * float(np.square(shares).sum()) / draws
    error = np.sqrt(np.asarray(spread + drawn))
    t = SLOPES / error[..., None]
    absent = np.log1p(-sample_rate) if sample_rate < 1 else -np.inf
    slopes = t[..., None] * shares / draws
    taking = np.logaddexp(absent, np.log(sample_rate) + slopes).sum(-1)
    spread, moved = np.asarray(spread)[..., None], np.asarray(moved)[..., None]
    return (draws * taking + t**2 * spread / 2 - t * moved).min(-1), error


def present(rows: Outputs) -> Check:
    """No output is without any noise: that of an empty batch has as much as any other."""
    empty = int((np.abs(rows).max(1) == 0).sum())
    says = f"{empty} of {len(rows)} outputs of clients with zero gradients are exactly zero"
    return Check(name="noise present", passed=empty == 0, says=says, significance=0.0)


def everywhere(rows: Outputs) -> Check:
    """Every sent coordinate has the claimed noise: the smallest sum of squares against chi-squared,
    all tested at once.

    With few rounds a coordinate's own sum of squares says little: it then only finds coordinates
    with next to none.
    """
    squares = np.square(rows).sum(0)
    p = chi2.cdf(squares, len(rows)) * rows.shape[1]
    thin = int((p < SIGNIFICANCE).sum())
    says = f"{thin} of {rows.shape[1]} sent coordinates have less noise than claimed (or none)"
    return Check(name="noise on every coordinate", passed=thin == 0, says=says)


def deviation(name: str, rows: Outputs) -> Check:
    """The deviation over all values of one client, not significantly below the claimed one.

    More noise than claimed is no breach of privacy and passes; the text shows it.
    """
    squares, count = float(np.square(rows).sum()), rows.size
    low, high = np.sqrt(squares / chi2.isf([SIGNIFICANCE / 2, 1 - SIGNIFICANCE / 2], count))
    says = (
        f"{np.sqrt(squares / count):.4f} of the deviation that the claim needs (between {low:.4f} "
        f"and {high:.4f}); {found_ratio(count):.3f} of it would be found"
    )
    return Check(
        name=f"noise deviation, {name}",
        passed=bool(high >= 1),
        says=says,
        significance=SIGNIFICANCE / 2,
    )


def fresh(rows: Outputs) -> Check:
    """No two outputs share noise: their correlations against N(0, 1 / kept), all pairs tested at
    once.
    """
    lengths = np.linalg.norm(rows, axis=1)
    units = rows[lengths > 0] / lengths[lengths > 0, None]
    if len(units) < 2:
        return Check(name="fresh noise", passed=True, says="fewer than two outputs to compare")
    inner = np.abs(units @ units.T)[np.triu_indices(len(units), 1)]
    p = _two_sided(float(inner.max()), rows.shape[1]) * len(inner)
    says = f"largest correlation of two of {len(units)} outputs is {inner.max():.4f}"
    return Check(name="fresh noise", passed=bool(p >= SIGNIFICANCE), says=says)


def unrepeated(rows: Outputs) -> Check:
    """No output repeats its noise within itself at any distance: the circular autocorrelation, all
    lags at once.
    """
    kept = rows.shape[1]
    if kept < 4:
        return Check(
            name="noise without repeats", passed=True, says="too few coordinates to compare"
        )
    power = np.square(np.abs(np.fft.rfft(rows, axis=1))).sum(0)
    lagged = np.fft.irfft(power, n=kept)
    if lagged[0] == 0:
        return Check(name="noise without repeats", passed=True, says="no noise to compare")
    correlation = np.abs(lagged[1 : kept // 2 + 1]) / lagged[0]
    # The lag of kept / 2 counts every product twice: its variance is doubled, and all are tested as
    # if theirs were.
    p = _two_sided(float(correlation.max()), rows.size / 2) * len(correlation)
    says = f"largest correlation of an output with itself at a distance is {correlation.max():.4f}"
    return Check(name="noise without repeats", passed=bool(p >= SIGNIFICANCE), says=says)


def normal(values: Float[np.ndarray, " n"]) -> Check:
    """The shape of the noise: Kolmogorov-Smirnov against a normal of the measured deviation, on
    distinct values.
    """
    values = values[:: max(1, len(values) // SHAPE_SAMPLE)]
    spread = values.std()
    p = 1.0 if spread == 0 else float(kstest(values / spread, norm.cdf).pvalue)
    says = f"Kolmogorov-Smirnov p = {p:.3g} against a normal distribution"
    return Check(name="normal noise", passed=bool(p >= SIGNIFICANCE), says=says)


def tails(values: Float[np.ndarray, " n"]) -> Check:
    """The tails of the noise, beyond what a distribution function shows: how many values there are
    beyond ``TAIL`` deviations, and how large the largest is, neither too few nor too many.

    Over the measured deviation, where x^2 / sum of x^2 has a Beta(1/2, (n - 1) / 2) law exactly.
    That of several values is negatively dependent: the bounds for independent ones hold.
    """
    squares = np.square(values)
    total, n = float(squares.sum()), len(values)
    if total == 0 or n < 2:
        return Check(name="tails of the noise", passed=True, says="no noise to compare")
    law = beta(0.5, (n - 1) / 2)
    share = float(law.sf(min(TAIL**2 / n, 1.0)))
    beyond, largest = int((squares * n > TAIL**2 * total).sum()), float(squares.max() / total)
    p = (
        2 * min(binom.cdf(beyond, n, share), binom.sf(beyond - 1, n, share)),
        n * law.sf(largest),
        np.exp(n * np.log1p(-min(law.sf(largest), 1 - 1e-16))),
    )
    says = (
        f"{beyond} of {n} values are beyond {TAIL:g} deviations ({n * share:.1f} are expected), "
        f"the largest is {np.sqrt(largest * n):.2f}"
    )
    return Check(name="tails of the noise", passed=bool(min(p) >= SIGNIFICANCE / 3), says=says)


def unequal(rows: Outputs) -> Check:
    """No value is used again, with either sign and in whatever place: within an output, and in
    another one of any round or client.

    Sizes are counted in cells of 1/256 deviation, which is the grid of the noise. Of values that
    are drawn one by one, as many share a cell as the mean counts m of all outputs say. Sums of
    (c - m)^2 - c within an output, and of (c - m) (c' - m) for two, are 0 in the mean; their
    variances are 2 and 1 times the sum of m^2. Tested as a Poisson excess of that variance, whose
    tail is longer than a normal one's.
    """
    count, sizes = len(rows), np.abs(rows)
    spread = float(np.sqrt(np.square(sizes).mean()))
    if count < FEWEST_OUTPUTS or spread == 0:
        return Check(name="no value used again", passed=True, says="too few outputs to compare")
    cells = np.minimum(sizes / spread * CELLS + 0.5, LAST_CELL).astype(np.int64)
    counts = np.stack([np.bincount(row, minlength=LAST_CELL + 1) for row in cells]).astype(float)
    mean = counts.mean(0)
    expected = float(np.square(mean).sum())
    centred = (counts - mean) * np.sqrt(count / (count - 1))  # the mean holds the output itself
    products = centred @ centred.T
    within = (np.trace(products) - counts.sum()) / 2
    two = products[np.triu_indices(count, 1)]
    p = (
        poisson.sf(count * expected / 2 + within - 1, count * expected / 2),
        poisson.sf(expected + two.max() - 1, expected) * len(two),
    )
    share = 2 * within / counts.sum()
    says = (
        f"{100 * max(share, 0):.2g} % of the values of an output are there twice beyond chance, "
        f"and at most {100 * max(two.max(), 0) / rows.shape[1]:.2g} % of them in another output"
    )
    passed = bool(min(p) >= SIGNIFICANCE / 2)
    return Check(name="no value used again", passed=passed, says=says)


def _two_sided(correlation: float, degrees: float) -> float:
    return float(2 * norm.sf(correlation * np.sqrt(degrees)))
