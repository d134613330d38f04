"""A warning about steps that are too short: a learning rate from a loop without a clip.

    lr C / (1 - m)     length of the longest step: mean of clipped gradients, momentum m
    ||W||              norm of the trained weights at the start
    needed             ||W|| over that length: steps in one direction that go as far as ||W||

An app of Flower makes a PrivateStep in each round, and further rounds may follow. There is no
warning if the limits of the node allow ``needed`` steps at this noise. All numbers are public.
"""

import math
import warnings
from collections.abc import Iterable
from functools import cache

from torch import Tensor

from fedlsg.accounting import AccountingError, Event, compose
from fedlsg.carriers import Dense, LowRank, RandomCarriers
from fedlsg.method import Method
from fedlsg.privacy.limits import budgets_now
from fedlsg.strategies.own_loop.loop_account import Spending
from fedlsg.user_code.short_traceback import user_level

LEAST_SHARE = 1.0
"""Steps should reach this multiple of ||W||. Flower's template (62,006 weights, epsilon 8, 60
steps) had an accuracy of 11 % with steps of length 1.0 in all, 25 % with 3.3 and 29 % with 13
(``benchmarks.flower.template_steps``).
"""


def warn_of_short_steps(
    method: Method, spending: Spending, noise_multiplier: float, weights: Iterable[Tensor]
) -> None:
    """Give a RuntimeWarning if all planned steps of SGD together are shorter than ||W||.

    Once a process for equal terms. Other optimizers have step lengths of their own, as have scaled
    or trained carriers: there is no warning about them.
    """
    server, mechanism = method.server, method.mechanism
    plain = isinstance(method.carrier, Dense | LowRank | RandomCarriers)
    if server.optimizer != "sgd" or not mechanism.private or not plain:
        return
    length = server.learning_rate * mechanism.clip_norm / (1 - server.momentum)
    terms = (length, spending.sample_rate, spending.steps, noise_multiplier, budgets_now())
    if terms in _seen():
        return
    _seen().add(terms)
    size = math.sqrt(sum(float(W.detach().double().square().sum()) for W in weights))
    needed = math.ceil(LEAST_SHARE * size / length) if length > 0 else 0
    if not 0 < needed < math.inf or spending.steps >= needed:
        return
    needed_steps = Event(
        sample_rate=spending.sample_rate, noise_multiplier=noise_multiplier, steps=needed
    )
    budgets = budgets_now()
    if budgets and all(_allows(needed_steps, *budget) for budget in budgets):
        return
    rounds = "" if not budgets else ", also over all rounds that the node's epsilon allows"
    warnings.warn(
        f"steps={spending.steps} at learning_rate={server.learning_rate:g} and "
        f"clip_norm={mechanism.clip_norm:g} hardly move the model: in one direction they would go "
        f"{100 * spending.steps * length / size:.2g} % of the length of its weights{rounds}, and "
        "models from scratch learn from more than 100 % on. A clipped step needs a larger "
        "learning_rate than one without a clip, such as 4; without learning_rate= a loop takes "
        "Adam at rates that need no tuning",
        RuntimeWarning,
        stacklevel=user_level(),
    )


def _allows(event: Event, epsilon: float, delta: float) -> bool:
    """Whether an event is within a budget."""
    try:
        return compose((event,), delta=delta).upper <= epsilon
    except AccountingError:
        return False


@cache  # for a process: a PrivateStep of each round, and of each client, has the same terms
def _seen() -> set[tuple[object, ...]]:
    """Terms that had their warning."""
    return set()
