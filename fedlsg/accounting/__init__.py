"""Epsilon of Poisson-subsampled Gaussian steps, certified and witnessed, and its inverses.

Which bound holds where, for neighbours by adding or removing one example (or unit):

    full batches, q = 1         exact, in closed form, to rounding            ``exact_gaussian``
    Poisson sampling, q < 1     privacy loss distribution on a grid, from     ``pld``, ``tilt``
                                above; within about 0.1 % of epsilon
    the same, as a witness      privacy random variables, an interval         ``prv``
    no grid fits, or where      Renyi divergences, from above; a tenth to a   ``renyi_bound``
    it is smaller               quarter too large
    one shuffled pass           a step at q = 1 with the least noise of the   ``privacy.totals``
                                epoch: an example is in one of its batches
    discrete noise in a sum     any of these, and Lambda, the log of a ratio  ``events``
                                of densities, added to epsilon
    clients that differ         the largest epsilon over the clients          ``population``

``certified`` chooses among them, and names the one that gave the reported upper bound. It reports
nothing where the witness's lower end is above that. ``calibrate`` inverts it: noise for an epsilon,
steps within one. ``hints`` keeps searches on disk; each is checked before it is used. What no bound
covers is refused (``AccountingError``).
"""

from fedlsg.accounting.calibrate import calibrate_each, calibrate_noise_multiplier, max_steps
from fedlsg.accounting.certified import ACCOUNTANTS, compose, epsilon
from fedlsg.accounting.checks import check_delta
from fedlsg.accounting.events import AccountingError, EpsilonBound, Event
from fedlsg.accounting.population import Events, Spread, displayed, shared_rates, spread
from fedlsg.accounting.renyi_bound import surely_within

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
