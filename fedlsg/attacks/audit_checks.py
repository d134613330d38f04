"""Checks of the noise itself, on outputs of clients whose examples have zero gradients: those outputs are all noise.

They see what no score can: noise that is missing on some coordinates, drawn once and used again, smaller where nobody
took part. Every check is a test whose probability of accusing correct code is at most ``SIGNIFICANCE``, except those
of events that correct code gives with probability 0. Recorded outputs and the claimed deviation are all that they read.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import chi2, kstest, norm

SIGNIFICANCE = 1e-5
SHAPE_SAMPLE = 100_000

Outputs = Float[np.ndarray, "rounds kept"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: whether it passed, and what was found, in words."""

    name: str
    passed: bool
    says: str


def noise_checks(silent: Mapping[str, Outputs], *, kept: int, noise_std: float) -> list[Check]:
    """All checks on silent clients' outputs, by the client's name; ``noise_std`` is the claimed deviation of a value.

    Raises ValueError for no outputs.
    """
    if not silent or any(not len(rows) for rows in silent.values()):
        raise ValueError("expected at least one output of at least one silent client")
    misshapen = [name for name, rows in silent.items() if rows.shape[1] != kept]
    if misshapen:
        return [Check(name="coordinates", passed=False, says=f"outputs of {misshapen} do not have {kept} values")]
    scaled = {name: np.asarray(rows, dtype=np.float64) / noise_std for name, rows in silent.items()}
    return [
        present(scaled),
        everywhere(np.concatenate(list(scaled.values()))),
        *(deviation(name, rows) for name, rows in scaled.items()),
        fresh(np.concatenate(list(scaled.values()))),
        unrepeated(np.concatenate(list(scaled.values()))),
        normal(np.concatenate([rows.ravel() for rows in scaled.values()])),
    ]


def displacement(moves: Float[np.ndarray, " m"], coins: Bool[np.ndarray, " m"]) -> Check:
    """Canaries that are in move the outputs no further than the claimed sensitivity and sample rate let them.

    ``moves`` as in ``unit_mode.Recording``: the mean of those in less that of those out is at most 1. A normal test
    with the variances of both groups.
    """
    members, others = moves[coins], moves[~coins]
    if min(len(members), len(others)) < 2:
        return Check(name="sensitivity", passed=True, says="too few canaries of both kinds to tell")
    moved = float(members.mean() - others.mean())
    error = float(np.sqrt(members.var(ddof=1) / len(members) + others.var(ddof=1) / len(others)))
    says = f"a canary moves the outputs by {moved:.3f} of what is claimed (standard error {error:.3f})"
    return Check(name="sensitivity", passed=bool(norm.sf((moved - 1) / error) >= SIGNIFICANCE), says=says)


def present(scaled: Mapping[str, Outputs]) -> Check:
    """No output is without any noise: that of an empty batch has as much as any other."""
    empty = sum(int((np.abs(rows).max(1) == 0).sum()) for rows in scaled.values())
    total = sum(len(rows) for rows in scaled.values())
    says = f"{empty} of {total} outputs of clients with zero gradients are exactly zero"
    return Check(name="noise present", passed=empty == 0, says=says)


def everywhere(rows: Outputs) -> Check:
    """Every sent coordinate has the claimed noise: the smallest sum of squares against chi-squared, all tested at once.

    With few rounds a coordinate's own sum of squares says little: it then only finds coordinates with next to none.
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
    says = f"{np.sqrt(squares / count):.4f} of the claimed deviation (between {low:.4f} and {high:.4f})"
    return Check(name=f"noise deviation, {name}", passed=bool(high >= 1), says=says)


def fresh(rows: Outputs) -> Check:
    """No two outputs share noise: their correlations against N(0, 1 / kept), all pairs tested at once."""
    lengths = np.linalg.norm(rows, axis=1)
    units = rows[lengths > 0] / lengths[lengths > 0, None]
    if len(units) < 2:
        return Check(name="fresh noise", passed=True, says="fewer than two outputs to compare")
    inner = np.abs(units @ units.T)[np.triu_indices(len(units), 1)]
    p = _two_sided(float(inner.max()), rows.shape[1]) * len(inner)
    says = f"largest correlation of two of {len(units)} outputs is {inner.max():.4f}"
    return Check(name="fresh noise", passed=bool(p >= SIGNIFICANCE), says=says)


def unrepeated(rows: Outputs) -> Check:
    """No output repeats its noise within itself at any distance: the circular autocorrelation, all lags at once."""
    kept = rows.shape[1]
    if kept < 4:
        return Check(name="noise without repeats", passed=True, says="too few coordinates to compare")
    power = np.square(np.abs(np.fft.rfft(rows, axis=1))).sum(0)
    lagged = np.fft.irfft(power, n=kept)
    if lagged[0] == 0:
        return Check(name="noise without repeats", passed=True, says="no noise to compare")
    correlation = np.abs(lagged[1 : kept // 2 + 1]) / lagged[0]
    # The lag of kept / 2 counts every product twice: its variance is doubled, and all are tested as if theirs were.
    p = _two_sided(float(correlation.max()), rows.size / 2) * len(correlation)
    says = f"largest correlation of an output with itself at a distance is {correlation.max():.4f}"
    return Check(name="noise without repeats", passed=bool(p >= SIGNIFICANCE), says=says)


def normal(values: Float[np.ndarray, " n"]) -> Check:
    """The shape of the noise: Kolmogorov-Smirnov against a normal of the measured deviation, on distinct values."""
    values = values[:: max(1, len(values) // SHAPE_SAMPLE)]
    spread = values.std()
    p = 1.0 if spread == 0 else float(kstest(values / spread, norm.cdf).pvalue)
    says = f"Kolmogorov-Smirnov p = {p:.3g} against a normal distribution"
    return Check(name="normal noise", passed=bool(p >= SIGNIFICANCE), says=says)


def _two_sided(correlation: float, degrees: float) -> float:
    return float(2 * norm.sf(correlation * np.sqrt(degrees)))
