"""The noisy count of an adaptive clip."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from scipy.stats import chi2

from fedlsg.attacks.audit.checks.check import SIGNIFICANCE, Check, Outputs, UnitClaim
from fedlsg.attacks.audit.checks.movement_bound import movement_log_p
from fedlsg.attacks.audit.checks.noise_checks import check_no_repeats
from fedlsg.attacks.audit.played.games import Count
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.training.client_level import COUNT_SENSITIVITY


def count_checks(silent: Mapping[str, Outputs], count: Count, setting: AuditSetting) -> list[Check]:
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
    of_count = np.sqrt(squares / chi2.isf(1 - level, len(count.empty) - 1)) / COUNT_SENSITIVITY
    both = 0.0 if not of_count else float((of_sum**-2.0 + of_count**-2.0) ** -0.5)
    needed = setting.stated.noise_multiplier
    checks = [
        Check(
            name="noise of the count",
            passed=both >= needed,
            says=f"sum and count together have a noise multiplier of at most {both:.4f}, the claim "
            f"needs {needed:.4f}",
        ),
        replace(check_no_repeats(count.empty[None]), name="fresh noise of the count"),
    ]
    noise_std = max(adaptive.count_noise, float(count.empty.std()))
    claim = UnitClaim(sample_rate=q, noise=noise_std / COUNT_SENSITIVITY)
    reach = count.units * q * COUNT_SENSITIVITY
    for name, counts in count.moved.items():
        moved = abs(float(counts.mean())) / reach
        variance = (noise_std / reach) ** 2 / len(counts)
        log_p, error = movement_log_p(moved, count.units * len(counts), claim, variance)
        says = (
            f"a client moves the count by {moved * COUNT_SENSITIVITY:.3f} (standard error "
            f"{error * COUNT_SENSITIVITY:.3f})"
        )
        passed = bool(log_p >= np.log(level))
        checks.append(Check(name=f"sensitivity, {name}", passed=passed, says=says))
    return checks
