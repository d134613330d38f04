"""Epsilon of Poisson-subsampled Gaussian steps, certified and witnessed, and its inverses."""

from fedlsg.accounting.calibrate import calibrate_each, calibrate_noise_multiplier, max_steps
from fedlsg.accounting.certified import ACCOUNTANTS, compose, epsilon
from fedlsg.accounting.closed_forms import surely_within
from fedlsg.accounting.events import AccountingError, EpsilonBound, Event, check_delta
from fedlsg.accounting.population import Events, Spread, displayed, shared_rates, spread

__all__ = [
    "ACCOUNTANTS",
    "AccountingError",
    "EpsilonBound",
    "Event",
    "Events",
    "Spread",
    "calibrate_each",
    "calibrate_noise_multiplier",
    "check_delta",
    "compose",
    "displayed",
    "epsilon",
    "max_steps",
    "shared_rates",
    "spread",
    "surely_within",
]
