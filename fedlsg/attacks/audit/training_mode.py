"""The training mode of the audit: canary examples in a real run, scored from its payloads.

A canary is an example with a wrong label: its gradient stays long and unlike the others'. The
auditor knows the public state of every round, every payload, and every example of the data but
which canaries are in it. It subtracts the expected sum of the rest, and filters for each canary's
clipped gradient, by the client's own code.

Symbols, with all vectors in noise deviations:
    q          sample rate
    w_k        weight of local step k in the payload; drift = q sum_k w_k
    x          clipped gradient of an example that is in the data, canaries included
    c_i        clipped gradient of canary i
    b_i        1 if canary i is in the data, else 0
    r          residual: the payload - drift (sum of the x that are no canaries + sum_i c_i / 2)
    v          shift: drift sum_i (b_i - 1/2) c_i, which is the mean of r if the claim is true
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import chi2, norm
from torch import Tensor

from fedlsg.attacks.audit.checks.check import SIGNIFICANCE, Check
from fedlsg.attacks.audit.played.setting import step_weights
from fedlsg.attacks.audit.played.unit_mode import log_ratios
from fedlsg.attacks.observation import Observation
from fedlsg.gradients import Batch
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.privacy import clipped_sum
from fedlsg.tensors import each
from fedlsg.training import per_unit

MAX_COMPARED_PAYLOADS = 256
MASKING_SQUARE = 1.5
"""Mean square of residuals above which ``check_fresh_noise`` has no power.

It is 1 + s, with 1 from the noise and s from the batches. Two payloads of the same noise differ by
2 s a value, and those of fresh noise by about 1 at least: s > 1/2 hides noise that is reused.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Payload:
    """What one payload says of its canaries.

    steps: local steps whose sums are in it.
    components: (m,) along each canary: 1 where it took part, 0 where not, in its own length.
    lengths: (m,) of what each canary adds, not in noise deviations.
    residual: (kept,) r.
    moved: r.v.
    expected: v.v, the mean of ``moved`` if the claim is true.
    variance: of ``moved`` if the claim is true, given the past: v.v from the noise, and
        q (1 - q) sum_k w_k^2 sum_x (x.v)^2 from who took part.
    """

    steps: int
    components: Float[Tensor, " m"]
    lengths: Float[Tensor, " m"]
    residual: Float[Tensor, " kept"]
    moved: float
    expected: float
    variance: float


def clipped_rows(
    observation: Observation, inputs: Batch, targets: Tensor
) -> Float[Tensor, "batch kept"]:
    """What each example adds to the sum, row by row, on the CPU.

    By the client's own gradients, block weights and clip.
    """
    precision, device = observation.local.precision, observation.values.device
    inputs, targets = each(inputs, lambda t: t.to(device)), targets.to(device)
    gradients = per_example_gradients(
        observation.model,
        observation.loss_fn,
        inputs,
        targets,
        observation.frame,
        precision=precision,
    )
    # mode training refuses runs with augmentation: an example has one copy
    units = per_unit(gradients, observation.frame, multiplicity=1)
    rows = [
        clipped_sum([unit[i : i + 1] for unit in units], observation.mechanism)
        for i in range(len(targets))
    ]
    return torch.stack(rows).cpu() if rows else torch.zeros(0, observation.frame.kept)


def examine(
    observation: Observation,
    canaries: tuple[Batch, Tensor],
    rest: tuple[Batch, Tensor],
    included: Tensor,
) -> Payload:
    """One payload of the client that may hold these canaries, and holds ``rest``.

    The residual lacks half of each canary, which its own component gets back. A component holds
    what other canaries add along this one, too.
    ``included`` (m,): b. It is in ``moved``, ``expected`` and ``variance``, and in nothing that a
    canary is scored by.
    """
    of_canaries = clipped_rows(observation, *canaries).double()
    others = clipped_rows(observation, *rest).double()
    q, std = observation.local.sample_rate, observation.noise_std
    weights = step_weights(observation.local)
    drift = q * sum(weights)
    expected_sum = drift * (others.sum(0) + of_canaries.sum(0) / 2)
    residual = observation.values.cpu().double() - expected_sum
    lengths = of_canaries.norm(dim=1).clamp_min(1e-12)
    shift = drift * (of_canaries.mT @ (included.double() - 0.5))
    along_shift = torch.cat([others, of_canaries[included]]) @ shift
    squared_weights = sum(w * w for w in weights)
    sampling_variance = q * (1 - q) * squared_weights * float(along_shift.square().sum())
    return Payload(
        steps=len(weights),
        components=(of_canaries @ residual) / lengths.square() + drift / 2,
        lengths=lengths,
        residual=residual / std,
        moved=float(shift @ residual) / std**2,
        expected=float(shift @ shift) / std**2,
        variance=float(shift @ shift) / std**2 + sampling_variance / std**4,
    )


def canary_scores(
    payloads: Sequence[Payload], noise_std: float, sample_rate: float
) -> Float[Tensor, " m"]:
    """Log likelihood ratio of each canary of one client over all its payloads.

    Raises ValueError for a payload of several local steps: a canary may be in some of them.
    """
    if steps := [payload.steps for payload in payloads if payload.steps != 1]:
        raise ValueError(
            f"expected payloads of one local step, got one of {steps[0]}: train with local_steps=1"
        )
    components = torch.stack([payload.components for payload in payloads])
    lengths = torch.stack([payload.lengths for payload in payloads])
    return log_ratios(components, lengths, noise_std=noise_std, sample_rate=sample_rate)


def payload_checks(payloads: Sequence[Payload]) -> list[Check]:
    """All checks of payloads: of sensitivity, of the noise's deviation, and of fresh noise."""
    residuals = [payload.residual.numpy() for payload in payloads]
    columns = np.array([(p.moved, p.expected, p.variance) for p in payloads]).reshape(-1, 3)
    return [
        check_sensitivity(*columns.T),
        check_noise_deviation(residuals),
        check_fresh_noise(residuals),
    ]


def check_sensitivity(
    moved: Float[np.ndarray, " n"],
    expected: Float[np.ndarray, " n"],
    variance: Float[np.ndarray, " n"],
) -> Check:
    """Canaries move the payloads no more than the claimed clip and sample rate let them.

    The slope of ``moved`` on ``expected`` is 1 if the claim is true: given the past, only the noise
    and the batch of a payload separate the two. The errors of payloads are therefore uncorrelated,
    whatever their canaries have in common, and their variances are known. The test is a normal one,
    and its significance is as good as that approximation. The spread of the payloads would be a
    poor estimate of the error, because a few of them may decide the slope.
    """
    if not expected.sum() > 0:
        return Check(name="sensitivity", passed=True, says="no payload with canaries to tell")
    slope = float(moved.sum() / expected.sum())
    error = float(np.sqrt(variance.sum()) / expected.sum())
    says = (
        f"canaries move the payloads by {slope:.3f} of what is claimed (standard error {error:.3f})"
    )
    passed = bool(norm.sf((slope - 1) / error) >= SIGNIFICANCE)
    return Check(name="sensitivity", passed=passed, says=says, error=error)


def check_noise_deviation(residuals: Sequence[Float[np.ndarray, " kept"]]) -> Check:
    """Payloads vary at least as much as their noise.

    Whatever the sum is, its distance from any guess only grows.
    What the batches add hides missing noise. The check cannot find noise of half the claimed
    deviation if the batches add as much as the claimed noise, or more.
    """
    squares = sum(float(np.square(residual).sum()) for residual in residuals)
    count = sum(map(len, residuals))
    says = (
        f"payloads are {np.sqrt(squares / count):.4f} noise deviations from what is expected, at "
        "least 1 is claimed"
    )
    return Check(
        name="noise deviation", passed=bool(chi2.cdf(squares, count) >= SIGNIFICANCE), says=says
    )


def check_fresh_noise(residuals: Sequence[Float[np.ndarray, " kept"]]) -> Check:
    """No two of the last payloads are closer than fresh noise lets them be.

    Payloads of equally many values are compared.
    Of two payloads let b be the later, or that of another client. Given all but its noise, r_b -
    r_a is that noise and a constant, whatever the examples add to either. Its squared length is
    noncentral chi-squared, so central chi-squared bounds its lower tail. The same holds for r_b +
    r_a. All pairs and both signs are tested at once.
    Noise that is reused cancels. It leaves the difference of what the two batches add, whose square
    is twice that of one batch, on average.
    No power above ``MASKING_SQUARE``, which ``says`` reports. Noise of half the claimed deviation
    fails here, too, if it is not masked: two such payloads are as close.
    """
    chosen = list(residuals)[-MAX_COMPARED_PAYLOADS:]
    groups = [
        np.stack([residual for residual in chosen if len(residual) == kept])
        for kept in sorted(set(map(len, chosen)))
    ]
    pairs = sum(len(rows) * (len(rows) - 1) // 2 for rows in groups)
    if not pairs:
        return Check(name="fresh noise", passed=True, says="no two payloads to compare")
    least = [(nearest(rows), rows.shape[1]) for rows in groups if len(rows) > 1]
    p = min(float(chi2.cdf(square, kept)) for square, kept in least) * 2 * pairs
    apart = min(np.sqrt(square / kept) for square, kept in least)
    says = (
        f"the nearest of {pairs} pairs of payloads are {apart:.3f} noise deviations apart, about 1 "
        "is the least"
    )
    if np.mean([np.square(residual).mean() for residual in chosen]) > MASKING_SQUARE:
        says += (
            "; no power here: what the batches add would keep payloads of the same noise as far "
            "apart"
        )
    return Check(name="fresh noise", passed=bool(p >= SIGNIFICANCE), says=says)


def nearest(rows: Float[np.ndarray, "n kept"]) -> float:
    """Least squared distance of a row from another, or from its negative."""
    squares = np.square(rows).sum(1)
    inner = np.abs(rows @ rows.T)
    i, j = np.triu_indices(len(rows), 1)
    return max(float((squares[i] + squares[j] - 2 * inner[i, j]).min()), 0.0)
