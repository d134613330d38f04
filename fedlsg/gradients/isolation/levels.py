"""The rule that chooses the level at which a pass runs a model, where its user leaves it "auto".

isolated    code of users runs under ``vmap`` on one example; known layers of torch run on the batch
rows        each example has a pass of its own: whatever the code does, it does it to one example
checked     the whole batch at once: for library code, which one check has compared with rows alone
"""

from collections.abc import Callable

from torch import nn

from fedlsg.setting.isolation import CHECKED, LEVELS, Isolation, Wanted
from fedlsg.user_code.library import own_code

__all__ = ["LEVELS", "Isolation", "resolve", "slow_word"]

SLOW = 2.0


def resolve(model: nn.Module, wanted: Wanted, try_isolated: Callable[[], object]) -> Isolation:
    """The level of ``model``: what is ``wanted``, or that of the rule for "auto".

    ``try_isolated`` runs the isolated pass on made-up rows, and raises where torch has no rule
    under ``vmap``. The loss has no say: at every level one of a user's own runs on the outputs of
    one example.
    """
    if wanted != "auto":
        return wanted
    if own_code(model) is None:
        return CHECKED
    try:
        try_isolated()
    except Exception:
        return "rows"
    return "isolated"


def slow_word(level: Isolation, factor: float) -> str:
    """What to say of a step that a level makes ``factor`` times as slow; empty up to twice."""
    if factor <= SLOW:
        return ""
    return (
        f"{factor:.1f} times the time of a step at isolation=checked, which trusts your own code "
        "as far as one check on made-up rows goes"
    )
