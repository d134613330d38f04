"""The rule that chooses the level at which a pass runs a model, where its user leaves it "auto".

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


def resolve(
    model: nn.Module, loss: object, wanted: Wanted, trial: Callable[[], Isolation]
) -> Isolation:
    """The level of ``model`` and ``loss``: what is ``wanted``, or that of the rule for "auto".

    ``trial`` runs own code on made-up or public rows: ``isolated`` where torch has a rule for it
    under ``vmap``, else ``rows``. At both levels a model of libraries runs on the batch, and a
    user's own loss on the outputs of one example.
    """
    if wanted not in ("auto", *LEVELS):
        raise ValueError(f"expected isolation in {('auto', *LEVELS)}, got {wanted!r}")
    if wanted != "auto":
        return wanted
    library = own_code(model) is None and own_code(loss) is None
    return CHECKED if library else trial()


def slow_word(level: Isolation, factor: float | None, reason: str = "") -> str:
    """What to say of a pass that a level makes ``factor`` times as slow (None: not known).

    At ``rows`` always, with the reason; else nothing up to twice.
    """
    reasons = ["one pass for each example"] if level == "rows" else []
    if factor is not None and factor > SLOW_FACTOR:
        reasons.append(
            f"{factor:.1f} times the time of a pass at isolation=checked, which trusts your own "
            "code as far as one check on made-up rows goes: give -c isolation=checked "
            "(isolation='checked' in Python) if you know that no example's output depends on "
            "another example; epsilon then rests on your word"
        )
    return "; ".join(filter(None, [", ".join(reasons), reason]))
