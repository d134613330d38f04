"""The level at which a pass runs a model: the rule for ``isolation="auto"``, and its words.

isolated    code of users runs under ``vmap`` on one example; known layers of torch run on the batch
rows        each example has a pass of its own: whatever the code does, it does it to one example
checked     the whole batch at once: for library code, which one check has compared with rows alone
"""

from collections.abc import Callable

from torch import nn

from fedlsg.config.isolation import CHECKED, LEVELS, Isolation, Wanted
from fedlsg.user_code.library import own_code

__all__ = ["LEVELS", "Isolation", "resolve", "slow_word"]

SLOW_FACTOR = 2.0
"""Times the time of a pass at ``checked`` from which a user is told."""


def resolve(
    model: nn.Module, loss: object, wanted: Wanted, trial: Callable[[], Isolation]
) -> Isolation:
    """The level of a model and a loss: ``wanted``, or by the rule for "auto".

    The rule: ``checked`` for code of libraries, else the result of ``trial``. That runs a user's
    code on made-up or public rows: ``isolated`` where torch has a rule for it under ``vmap``, else
    ``rows``. What runs at each level for which code: the table of ``passes._at_level``.
    Raises ValueError for an unknown level.
    """
    if wanted not in ("auto", *LEVELS):
        raise ValueError(f"expected isolation in {('auto', *LEVELS)}, got {wanted!r}")
    if wanted != "auto":
        return wanted
    library = own_code(model) is None and own_code(loss) is None
    return CHECKED if library else trial()


def slow_word(level: Isolation, factor: float | None, option: str, reason: str = "") -> str:
    """The message for a pass that a level makes ``factor`` times as slow; empty if there is none.

    factor: None if it is not known.
    option: how the caller of fedlsg gives the level ``checked``.
    reason: why the level was taken, the end of the message.
    At ``rows``, or with a reason, there is always a message, else only above ``SLOW_FACTOR``.
    """
    reasons = ["one pass for each example"] if level == "rows" else []
    if factor is not None and factor > SLOW_FACTOR:
        reasons.append(
            f"about {factor:.2g} times the time of a pass at isolation=checked, which trusts your "
            f"own code as far as one check on made-up rows goes: give {option} only if you know "
            "that no example's output depends on another example; epsilon then rests on your word"
        )
    return "; ".join(filter(None, [", ".join(reasons), reason]))
