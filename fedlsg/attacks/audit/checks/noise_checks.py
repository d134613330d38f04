"""The noise of outputs that hold nothing else: those of units whose gradients are zero.

The checks see what no score can: noise that is missing on some coordinates, drawn once and used
again, or smaller where no unit took part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from scipy.stats import beta, binom, chi2, kstest, norm, poisson

from fedlsg.attacks.audit.checks.check import SIGNIFICANCE, Check, Outputs
from fedlsg.attacks.audit.played.games import Game
from fedlsg.attacks.audit.played.sample_sizes import found_noise_ratio
from fedlsg.attacks.audit.played.setting import AuditSetting

SHAPE_SAMPLE = 100_000
"""Values at most whose distribution is compared with the normal one."""
TAIL = 3.0
"""Deviations from which on values are counted as a tail."""
CELLS = 256
"""Cells a deviation in which sizes of values are counted."""
LAST_CELL = 8 * CELLS
"""The cell of all values that are larger."""
FEWEST_OUTPUTS = 8
"""Outputs that ``check_values_used_once`` compares, at the fewest."""
LAST_DIGITS = 6
"""Binary digits of a float32 that ``check_digits`` looks at: fresh noise has all of them 0 in at
most 4 % of its values, sums of a few draws included.
"""


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
        check_noise_present(every),
        check_every_coordinate(every),
        *(check_deviation(name, rows) for name, rows in {**scaled, "all": every}.items()),
        check_fresh_noise(every),
        check_no_repeats(every),
        check_normal(every.ravel()),
        check_tails(every.ravel()),
        check_values_used_once(every),
    ]


def grid_checks(grid: Mapping[str, Outputs], *, noise_std: float) -> list[Check]:
    """What a rotation hides, on the integers that are added up: noise that is missing, or used
    twice.
    """
    if not grid:
        return []
    values = np.concatenate([np.asarray(rows, dtype=np.float64) for rows in grid.values()])
    rows = values / noise_std
    checks = [check_every_coordinate(rows), check_fresh_noise(rows), check_no_repeats(rows)]
    return [replace(check, name=f"{check.name}, on the grid") for check in checks]


def pass_checks(games: Sequence[Game], setting: AuditSetting) -> list[Check]:
    """Outputs of clients that share a pass with another one's units are noise, as if alone: where
    only a sum is private, each client's share of its noise.
    """
    checks = []
    noise_std = setting.noise_std / setting.stated.honest**0.5
    for game in games:
        if game.elsewhere is not None:
            rows = np.asarray(game.elsewhere, dtype=np.float64) / noise_std
            found = (
                check_noise_present(rows),
                check_deviation("all", rows),
                check_fresh_noise(rows),
                check_nothing_of_others(rows),
            )
            checks += [replace(check, name=f"{check.name}, next to {game.name}") for check in found]
    return checks


def check_noise_present(rows: Outputs) -> Check:
    """No output is without any noise: that of an empty batch has as much as any other."""
    empty = int((np.abs(rows).max(1) == 0).sum())
    says = f"{empty} of {len(rows)} outputs of clients with zero gradients are exactly zero"
    return Check(name="noise present", passed=empty == 0, says=says, significance=0.0)


def check_every_coordinate(rows: Outputs) -> Check:
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


def check_deviation(name: str, rows: Outputs) -> Check:
    """The deviation over all values of one client, not significantly below the claimed one.

    More noise than claimed does not weaken privacy and passes; the text shows it.
    """
    squares, count = float(np.square(rows).sum()), rows.size
    low, high = np.sqrt(squares / chi2.isf([SIGNIFICANCE / 2, 1 - SIGNIFICANCE / 2], count))
    says = (
        f"{np.sqrt(squares / count):.4f} of the deviation that the claim needs (between {low:.4f} "
        f"and {high:.4f}); {found_noise_ratio(count):.3f} of it would be found"
    )
    return Check(
        name=f"noise deviation, {name}",
        passed=bool(high >= 1),
        says=says,
        significance=SIGNIFICANCE / 2,
    )


def check_fresh_noise(rows: Outputs) -> Check:
    """No two outputs share noise: their correlations against N(0, 1 / kept), all pairs tested at
    once.
    """
    lengths = np.linalg.norm(rows, axis=1)
    units = rows[lengths > 0] / lengths[lengths > 0, None]
    if len(units) < 2:
        return Check(name="fresh noise", passed=True, says="fewer than two outputs to compare")
    inner = np.abs(units @ units.T)[np.triu_indices(len(units), 1)]
    p = correlation_p(float(inner.max()), rows.shape[1]) * len(inner)
    says = f"largest correlation of two of {len(units)} outputs is {inner.max():.4f}"
    return Check(name="fresh noise", passed=bool(p >= SIGNIFICANCE), says=says)


def check_no_repeats(rows: Outputs) -> Check:
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
    p = correlation_p(float(correlation.max()), rows.size / 2) * len(correlation)
    says = f"largest correlation of an output with itself at a distance is {correlation.max():.4f}"
    return Check(name="noise without repeats", passed=bool(p >= SIGNIFICANCE), says=says)


def check_normal(values: Float[np.ndarray, " n"]) -> Check:
    """The shape of the noise: Kolmogorov-Smirnov against a normal of the measured deviation, on
    distinct values.
    """
    values = values[:: max(1, len(values) // SHAPE_SAMPLE)]
    spread = values.std()
    p = 1.0 if spread == 0 else float(kstest(values / spread, norm.cdf).pvalue)
    says = f"Kolmogorov-Smirnov p = {p:.3g} against a normal distribution"
    return Check(name="normal noise", passed=bool(p >= SIGNIFICANCE), says=says)


def check_tails(values: Float[np.ndarray, " n"]) -> Check:
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


def check_values_used_once(rows: Outputs) -> Check:
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


def check_digits(silent: Mapping[str, Outputs]) -> Check:
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


def check_nothing_of_others(rows: Outputs) -> Check:
    """Nothing but the claimed noise is in outputs of clients whose examples have no gradient.

    The largest mean square of an output, against chi-squared of the noise that all of them have.
    """
    squares = np.square(rows).sum(1)
    usual = max(1.0, float(np.median(squares)) / rows.shape[1])
    p = float(chi2.sf(squares.max() / usual, rows.shape[1])) * len(rows)
    says = f"the largest output is {np.sqrt(squares.max() / rows.shape[1]):.3f} noise deviations"
    return Check(name="nothing of other clients", passed=bool(p >= SIGNIFICANCE), says=says)


def correlation_p(correlation: float, degrees: float) -> float:
    """The probability of so large a correlation of independent normal values, of either sign."""
    return float(2 * norm.sf(correlation * np.sqrt(degrees)))
