"""Checks of the noise, on outputs that hold nothing else: those of units with zero gradients.

They find what no score can: noise that is missing on some coordinates, drawn once and used again,
or smaller where no unit took part.
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
"""Values whose distribution is compared with the normal one, at most."""
TAIL = 3.0
"""Values beyond so many deviations are the tail."""
CELLS = 256
"""Cells a deviation in which the sizes of values are counted."""
LAST_CELL = 8 * CELLS
"""The cell of all larger values, from 8 deviations on."""
FEWEST_OUTPUTS = 8
"""Outputs that ``check_values_used_once`` compares, at least."""
LAST_DIGITS = 6
"""Binary digits of a float32 that ``check_digits`` reads: fresh noise has all of them 0 in at most
4 % of its values, sums of a few draws included.
"""


def noise_checks(silent: Mapping[str, Outputs], *, kept: int, noise_std: float) -> list[Check]:
    """All checks of the outputs of silent units.

    silent: the outputs by the name of the units.
    kept: values in one output.
    noise_std: the claimed deviation of a value.
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
    """Checks of the integers that a secure sum adds up, before the rotation is undone.

    The rotation would hide noise that is missing or used twice.
    """
    if not grid:
        return []
    values = np.concatenate([np.asarray(rows, dtype=np.float64) for rows in grid.values()])
    rows = values / noise_std
    checks = [check_every_coordinate(rows), check_fresh_noise(rows), check_no_repeats(rows)]
    return [replace(check, name=f"{check.name}, on the grid") for check in checks]


def pass_checks(games: Sequence[Game], setting: AuditSetting) -> list[Check]:
    """Checks of clients without gradients that share a pass with a client that has units.

    Their outputs must be noise, as if they were alone. Where only a sum is private, each of them
    has its share of the noise: one of h, the honest clients.
    """
    checks = []
    noise_std = setting.noise_std / setting.stated.honest**0.5
    for game in games:
        if game.elsewhere is not None:
            rows = np.asarray(game.elsewhere, dtype=np.float64) / noise_std
            of_game = (
                check_noise_present(rows),
                check_deviation("all", rows),
                check_fresh_noise(rows),
                check_nothing_of_others(rows),
            )
            name = f"next to {game.name}"
            checks += [replace(check, name=f"{check.name}, {name}") for check in of_game]
    return checks


def check_noise_present(rows: Outputs) -> Check:
    """No output is exactly zero: that of an empty batch has as much noise as any other."""
    empty = int((np.abs(rows).max(1) == 0).sum())
    says = f"{empty} of {len(rows)} outputs of clients with zero gradients are exactly zero"
    return Check(name="noise present", passed=empty == 0, says=says, significance=0.0)


def check_every_coordinate(rows: Outputs) -> Check:
    """Every sent coordinate has the claimed noise.

    Test: the smallest sum of squares of a coordinate against chi-squared, all coordinates at once.
    With few rounds it only finds coordinates with almost no noise.
    """
    squares = np.square(rows).sum(0)
    p = chi2.cdf(squares, len(rows)) * rows.shape[1]
    thin = int((p < SIGNIFICANCE).sum())
    says = f"{thin} of {rows.shape[1]} sent coordinates have less noise than claimed (or none)"
    return Check(name="noise on every coordinate", passed=thin == 0, says=says)


def check_deviation(name: str, rows: Outputs) -> Check:
    """The deviation over all values of one client is not significantly below the claimed one.

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
    """No two outputs share noise.

    Test: the correlations of all pairs against N(0, 1 / kept), all at once.
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
    """No output repeats its noise within itself at any distance.

    Test: the circular autocorrelation, all lags at once.
    """
    kept = rows.shape[1]
    if kept < 4:
        return Check(
            name="noise without repeats", passed=True, says="too few coordinates to compare"
        )
    power = np.square(np.abs(np.fft.rfft(rows, axis=1))).sum(0)
    by_lag = np.fft.irfft(power, n=kept)
    if by_lag[0] == 0:
        return Check(name="noise without repeats", passed=True, says="no noise to compare")
    correlation = np.abs(by_lag[1 : kept // 2 + 1]) / by_lag[0]
    # The lag of kept / 2 counts every product twice, so that its variance is doubled. All lags are
    # tested with that variance.
    p = correlation_p(float(correlation.max()), rows.size / 2) * len(correlation)
    says = f"largest correlation of an output with itself at a distance is {correlation.max():.4f}"
    return Check(name="noise without repeats", passed=bool(p >= SIGNIFICANCE), says=says)


def check_normal(values: Float[np.ndarray, " n"]) -> Check:
    """The noise is normal, by Kolmogorov-Smirnov against a normal of the measured deviation.

    On distinct values.
    """
    values = values[:: max(1, len(values) // SHAPE_SAMPLE)]
    spread = values.std()
    p = 1.0 if spread == 0 else float(kstest(values / spread, norm.cdf).pvalue)
    says = f"Kolmogorov-Smirnov p = {p:.3g} against a normal distribution"
    return Check(name="normal noise", passed=bool(p >= SIGNIFICANCE), says=says)


def check_tails(values: Float[np.ndarray, " n"]) -> Check:
    """The tails of the noise are normal: the number of values beyond ``TAIL``, and the largest.

    Neither may be too small or too large. Values are over the measured deviation: for n normal
    values, x^2 / sum of x^2 has exactly a Beta(1/2, (n - 1) / 2) law. Several of them are
    negatively dependent, so that the bounds for independent values hold.
    """
    squares = np.square(values)
    total, n = float(squares.sum()), len(values)
    if total == 0 or n < 2:
        return Check(name="tails of the noise", passed=True, says="no noise to compare")
    law = beta(0.5, (n - 1) / 2)
    share = float(law.sf(min(TAIL**2 / n, 1.0)))
    beyond = int((squares * n > TAIL**2 * total).sum())
    largest = float(squares.max() / total)
    p = (
        2 * min(binom.cdf(beyond, n, share), binom.sf(beyond - 1, n, share)),
        n * law.sf(largest),  # a value so large, at least once
        np.exp(n * np.log1p(-min(law.sf(largest), 1 - 1e-16))),  # no larger value
    )
    says = (
        f"{beyond} of {n} values are beyond {TAIL:g} deviations ({n * share:.1f} are expected), "
        f"the largest is {np.sqrt(largest * n):.2f}"
    )
    return Check(name="tails of the noise", passed=bool(min(p) >= SIGNIFICANCE / 3), says=says)


def check_values_used_once(rows: Outputs) -> Check:
    """No value is used again, at any place and with either sign, in this output or in another one.

    The sizes of values are counted in cells of 1/256 deviation, which is the grid of the noise.
    Symbols: c, c' counts of a cell in two outputs, m the mean count of the cell over all outputs.
    For values that are drawn one by one, the sum over cells of (c - m)^2 - c, and that of
    (c - m) (c' - m) for two outputs, are 0 in the mean; their variances are 2 and 1 times the sum
    of m^2. They are tested as a Poisson excess of that variance, whose tail is longer than a normal
    one's.
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
    """The noise has all digits of its type.

    Noise of 16 bits leaves the last digits of an output to the sum, which they show. A sum of such
    noises has more digits than one of them, and its last ones are still 0 (for 30 clients, in nine
    values of ten).
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
    """Outputs of clients whose examples have no gradient hold nothing but the claimed noise.

    Test: the largest mean square of an output, against chi-squared of the noise that all of them
    have.
    """
    squares = np.square(rows).sum(1)
    usual = max(1.0, float(np.median(squares)) / rows.shape[1])
    p = float(chi2.sf(squares.max() / usual, rows.shape[1])) * len(rows)
    says = f"the largest output is {np.sqrt(squares.max() / rows.shape[1]):.3f} noise deviations"
    return Check(name="nothing of other clients", passed=bool(p >= SIGNIFICANCE), says=says)


def correlation_p(correlation: float, degrees: float) -> float:
    """The probability of so large a correlation of independent normal values, of either sign."""
    return float(2 * norm.sf(correlation * np.sqrt(degrees)))
