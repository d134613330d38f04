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
from scipy.stats import chi2, kstest, norm

from fedlsg.attacks.audit.setting import Setting, found_ratio
from fedlsg.attacks.audit.unit_mode import Recording

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
        *grid_checks(recording.grid, noise_std=setting.noise_std),
    )


def grid_checks(grid: Mapping[str, Outputs], *, noise_std: float) -> list[Check]:
    """What a rotation hides, on the integers that are added up: noise that is missing, or used
    twice.
    """
    if not grid:
        return []
    rows = (
        np.concatenate([np.asarray(some, dtype=np.float64) for some in grid.values()]) / noise_std
    )
    found = [check(rows) for check in (everywhere, fresh, unrepeated)]
    return [replace(check, name=f"{check.name}, on the grid") for check in found]


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
    guide, found = rows[::2].mean(0), []
    for some, direction in ((rows, np.asarray(way, dtype=np.float64)), (rows[1::2], guide)):
        norm = float(np.linalg.norm(direction))
        if norm and len(some):
            reach = units * sample_rate * sum(weights)
            moved, spread = (
                float((some @ direction).mean()) / norm / sensitivity / reach,
                noise**2 / reach**2,
            )
            spread /= len(some)
            found.append(
                (
                    *further(
                        moved,
                        units * len(some),
                        sample_rate=sample_rate,
                        weights=weights,
                        spread=spread,
                    ),
                    moved,
                )
            )
    log_p, error, moved = min(found)
    says = (
        f"{units} equal units move the outputs by {moved:.3f} of what is claimed (standard error "
        f"{error:.3f})"
    )
    return Check(
        name="sensitivity of many", passed=bool(log_p >= np.log(SIGNIFICANCE / 2)), says=says
    )


def further(
    moved: float, draws: int, *, sample_rate: float, weights: Sequence[float], spread: float
) -> tuple[float, float]:
    """Log of the bound on the probability of moving so far, and the standard error, if the claim is
    true.

    ``draws``: units times rounds, in each of which a unit takes part with probability q; the mean
    is 1. ``spread``: the variance from the noise.
    """
    shares = np.asarray(weights) / (sample_rate * sum(weights))
    error = float(
        np.sqrt(spread + sample_rate * (1 - sample_rate) * float(np.square(shares).sum()) / draws)
    )
    t = SLOPES / error
    absent = np.log1p(-sample_rate) if sample_rate < 1 else -np.inf
    taking = np.logaddexp(absent, np.log(sample_rate) + np.outer(t, shares) / draws).sum(1)
    return float((draws * taking + t**2 * spread / 2 - t * moved).min()), error


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


def _two_sided(correlation: float, degrees: float) -> float:
    return float(2 * norm.sf(correlation * np.sqrt(degrees)))
