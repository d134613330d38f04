"""How many outputs and canaries a unit-mode audit needs to find the smallest mistakes.

All numbers follow from an ``AuditSetting``; nothing is measured here. A test accuses correct code
with probability FALSE_ALARM, and misses a mistake of the size named below with probability MISSED.
Let z be the sum of the two normal quantiles (7.8). Then

    noise of r times the claimed deviation is found in N values    if N >= (z / (1 - r))^2 / 2
    a unit that adds 1 + e times what is claimed is found          if its standard error is <= e / z

Symbols: q sampling rate, R rounds, W the sum of the step weights, h clients whose noise the reader
does not know.
"""

import math

from scipy.special import ndtri

from fedlsg.attacks.audit.played.setting import AuditSetting

FALSE_ALARM = 1e-6
MISSED = 1e-3
Z = float(-ndtri(FALSE_ALARM) - ndtri(MISSED))

FOUND_NOISE_RATIO = 0.97
"""Noise of this share of the claimed deviation, or less, is found."""
FOUND_EXCESS = 0.25
"""Canaries that add a quarter more than claimed are found."""

MIN_SILENT_ROUNDS = 32
MAX_SILENT_NUMBERS = 2**26
"""Random numbers that all clients draw for silent outputs: about a minute."""

MIN_CANARIES = 200
MAX_CANARIES = 5000
MAX_CLIENT_STEPS = 5000
"""Client steps that all canaries take together, unless MIN_CANARIES need more."""
MAX_CLIENT_CANARIES = 256
MAX_CLIENT_NUMBERS = 2**26
"""Numbers in the gradients of one client's canaries."""

MAX_EQUAL_UNITS = 512
MAX_EQUAL_NUMBERS = 2**24
"""Numbers in the gradients of the equal units of one output."""


def silent_rounds(setting: AuditSetting) -> int:
    """Outputs of each of two kinds, of one and of many silent units: units with zero gradients.

    The values of both kinds together suffice for ``noise_ratio_to_find``, if that takes no more
    than MAX_SILENT_NUMBERS.
    """
    values = (Z / (1 - noise_ratio_to_find(setting))) ** 2 / 2
    wanted = math.ceil(values / setting.frame.kept / 2)
    affordable = MAX_SILENT_NUMBERS // (2 * setting.frame.kept * setting.stated.members)
    return max(MIN_SILENT_ROUNDS, min(wanted, affordable))


def noise_ratio_to_find(setting: AuditSetting) -> float:
    """The share of the claimed deviation that must be found.

    It is the larger of FOUND_NOISE_RATIO and the deviation of a sum in which the noise of one of h
    clients is missing.
    """
    h = setting.stated.honest
    one_client_missing = math.sqrt((h - 1) / h)
    return max(FOUND_NOISE_RATIO, one_client_missing)


def found_noise_ratio(values: int) -> float:
    """The share of the claimed deviation that is found in so many values."""
    return 1 - Z / math.sqrt(2 * values)


def enough_canaries(setting: AuditSetting) -> int:
    """Canaries, of which half take part: enough to find FOUND_EXCESS, within MAX_CLIENT_STEPS."""
    wanted = math.ceil(canary_variance(setting) * (Z / FOUND_EXCESS) ** 2)
    wanted = min(max(wanted, MIN_CANARIES), MAX_CANARIES)
    in_series = max(canaries_of_series(setting, wanted))
    clients = setting.stated.members
    if setting.stated.trust == "server":  # each sampled canary may be a client of its own
        clients = max(clients, math.ceil(setting.stated.sample_rate * in_series))
    affordable_series = max(1, MAX_CLIENT_STEPS // (setting.rounds * clients))
    return min(wanted, max(MIN_CANARIES, in_series * affordable_series))


def canary_variance(setting: AuditSetting) -> float:
    """Variance of the measured addition of canaries, for one canary; m canaries divide it by m.

    The measured addition is the mean over canaries that are in, less the mean over those that are
    out, each over R rounds and relative to the claimed addition. Half of the canaries are in, so
    that noise counts four times. The Poisson sampling varies the half that is in alone.
    """
    q = setting.stated.sample_rate
    R = setting.rounds
    W = sum(setting.weights)
    noise = setting.noise_std / setting.sensitivity
    from_noise = (noise / (q * W)) ** 2 / R * 4
    from_sampling = 2 * (1 - q) / q * sum(w * w for w in setting.weights) / W**2 / R
    return from_noise + from_sampling


def canaries_of_series(setting: AuditSetting, count: int) -> list[int]:
    """Canaries in each series of outputs: as few series as hold ``count``, equally full.

    A series is one client (or one sum) through all rounds. Its canaries are orthogonal; half of the
    frame's directions stay free.
    """
    kept = setting.frame.kept
    most = max(1, min(MAX_CLIENT_CANARIES, kept // 2, MAX_CLIENT_NUMBERS // kept))
    if (room := max_units(setting)) is not None:
        most = min(most, room)
    series = math.ceil(count / most)
    fewest, rest = divmod(count, series)
    return [fewest + 1] * rest + [fewest] * (series - rest)


def max_units(setting: AuditSetting) -> int | None:
    """The most units in one output: the honest clients of a secure sum of updates.

    None if there is no limit.
    """
    if setting.stated.whole and setting.sums is not None:
        return setting.stated.honest
    return None


def equal_units(setting: AuditSetting) -> int:
    """How many units of one gradient an output has, in tests where many equal units add up.

    Not more than a secure sum expects: it has no room for larger sums.
    """
    room = max(1, MAX_EQUAL_NUMBERS // setting.frame.kept)
    if setting.sums is None:
        return min(MAX_EQUAL_UNITS, room)
    honest_clients = max_units(setting)
    if honest_clients is not None:
        return honest_clients
    expected_units = math.floor(setting.sums.expected_examples / setting.stated.sample_rate)
    return max(1, min(MAX_EQUAL_UNITS, room, expected_units))
