"""All checks of what an audit recorded in the unit mode."""

import math

import numpy as np

from fedlsg.attacks.audit.checks.check import Check, UnitClaim
from fedlsg.attacks.audit.checks.count_checks import count_checks
from fedlsg.attacks.audit.checks.noise_checks import (
    check_digits,
    grid_checks,
    noise_checks,
    pass_checks,
)
from fedlsg.attacks.audit.checks.unit_checks import check_canaries, check_equal_units, game_checks
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.attacks.audit.played.unit_mode import Recording


def check_recording(recording: Recording, setting: AuditSetting) -> tuple[Check, ...]:
    """Every check of a recording against the claims of its setting, in the order of the report."""
    claim = unit_claim(recording, setting)
    checks = [
        check_canaries(recording.moves, recording.included, claim, rounds=setting.rounds),
        check_equal_units(
            recording.equal_unit_outputs,
            recording.equal_unit_gradient,
            claim,
            units=recording.equal_units,
            sensitivity=setting.sensitivity,
        ),
        *noise_checks(
            recording.silent_outputs, kept=setting.frame.kept, noise_std=setting.noise_std
        ),
    ]
    # the values of a secure sum are on a grid: ``grid_checks`` test its noise
    if setting.sums is None:
        checks.append(check_digits(recording.silent_outputs))
    checks += grid_checks(recording.grid, noise_std=setting.noise_std)
    for game in recording.games:
        checks += game_checks(game, claim)
    checks += pass_checks(recording.games, setting)
    if recording.count is not None:
        checks += count_checks(recording.silent_outputs, recording.count, setting)
    return tuple(checks)


def unit_claim(recording: Recording, setting: AuditSetting) -> UnitClaim:
    """The claim, with the larger of claimed and measured noise.

    An output with more noise than claimed must not fail the checks of sensitivity. The measured
    standard deviation is the largest of the silent units.
    """
    measured_std = math.sqrt(
        max(
            float(np.square(rows, dtype=np.float64).mean())
            for rows in recording.silent_outputs.values()
        )
    )
    return UnitClaim(
        sample_rate=setting.stated.sample_rate,
        noise=max(setting.noise_std, measured_std) / setting.sensitivity,
        weights=setting.weights,
    )
