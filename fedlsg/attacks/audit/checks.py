"""Checks of the noise itself, on outputs of clients whose examples have zero gradients: those outputs are all noise.

They see what no score can: noise that is missing on some coordinates, drawn once and used again, smaller where nobody
took part. Every check is a test whose probability of accusing correct code is at most its ``significance``: 0 for
events that correct code does not give. Recorded outputs and what is claimed are all that they read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import chi2, kstest, norm

from fedlsg.attacks.audit.canaries import step_weights
from fedlsg.attacks.audit.unit_mode import Recording, Setting

SIGNIFICANCE = 1e-5
SHAPE_SAMPLE = 100_000
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


def unit_checks(seen: Recording, setting: Setting) -> tuple[Check, ...]:
    """All checks of the unit mode: what was recorded, held to what ``setting`` claims."""
    moved = displacement(
        seen.moves,
        seen.included,
        sample_rate=setting.local.sample_rate,
        rounds=setting.rounds,
        noise=setting.noise_std / setting.mechanism.sensitivity(len(setting.frame.blocks)),
        weights=step_weights(setting.local),
    )
    return (moved, *noise_checks(seen.silent, kept=setting.frame.kept, noise_std=setting.noise_std))


def noise_checks(silent: Mapping[str, Outputs], *, kept: int, noise_std: float) -> list[Check]:
    """All checks on silent clients' outputs, by the client's name; ``noise_std`` is the claimed deviation of a value.

    Raises ValueError for no outputs.
    """
    if not silent or any(not len(rows) for rows in silent.values()):
        raise ValueError("expected at least one output of at least one silent client")
    misshapen = [name for name, rows in silent.items() if rows.shape[1] != kept]
    if misshapen:
        says = f"outputs of {misshapen} do not have {kept} values"
        return [Check(name="coordinates", passed=False, says=says, significance=0.0)]
    scaled = {name: np.asarray(rows, dtype=np.float64) / noise_std for name, rows in silent.items()}
    return [
        present(scaled),
        everywhere(np.concatenate(list(scaled.values()))),
        *(deviation(name, rows) for name, rows in scaled.items()),
        fresh(np.concatenate(list(scaled.values()))),
        unrepeated(np.concatenate(list(scaled.values()))),
        normal(np.concatenate([rows.ravel() for rows in scaled.values()])),
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
    """Canaries that are in move the outputs no further than the claimed sensitivity and sample rate let them.

    ``moves`` as in ``unit_mode.Recording``: the mean of those in less that of those out is at most 1. ``noise``: the
    claimed deviation of an output along a canary, over the canary's length; ``weights``: those of the local steps.
    Nothing is estimated: if the claim is true, that difference is a sum of Bernoulli draws and of normal noise whose
    moments are known, and Chernoff's bound on its tail (any t > 0 in it gives one) holds for any number of
    canaries, rounds, and rate. It is at most some ten times the tail itself, paid in power: 4.8 standard errors where a
    normal test needs 4.3. Assumes orthogonal canaries, as ``canaries.make_canaries`` gives under a joint clip.
    """
    members, others = int(included.sum()), int((~included).sum())
    if not members or not others:
        return Check(name="sensitivity", passed=True, says="no canaries of both kinds")
    moved = float(moves[included].mean() - moves[~included].mean())
    shares = np.asarray(weights) / (sample_rate * rounds * sum(weights))
    spread = noise**2 / (rounds * (sample_rate * sum(weights)) ** 2) * (1 / members + 1 / others)
    drawn = sample_rate * (1 - sample_rate) * rounds * float(np.square(shares).sum()) / members
    error = float(np.sqrt(spread + drawn))
    t = SLOPES / error
    absent = np.log1p(-sample_rate) if sample_rate < 1 else -np.inf
    taking = np.logaddexp(absent, np.log(sample_rate) + np.outer(t, shares) / members).sum(1)
    log_p = float((members * rounds * taking + t**2 * spread / 2 - t * moved).min())
    says = f"a canary moves the outputs by {moved:.3f} of what is claimed (standard error {error:.3f})"
    return Check(name="sensitivity", passed=bool(log_p >= np.log(SIGNIFICANCE)), says=says)


def present(scaled: Mapping[str, Outputs]) -> Check:
    """No output is without any noise: that of an empty batch has as much as any other."""
    empty = sum(int((np.abs(rows).max(1) == 0).sum()) for rows in scaled.values())
    total = sum(len(rows) for rows in scaled.values())
    says = f"{empty} of {total} outputs of clients with zero gradients are exactly zero"
    return Check(name="noise present", passed=empty == 0, says=says, significance=0.0)


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
    return Check(name=f"noise deviation, {name}", passed=bool(high >= 1), says=says, significance=SIGNIFICANCE / 2)


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
