"""The levels at which a private pass runs a model and its loss. Nothing here imports torch.

isolated    code of users runs under ``vmap`` on one example; known layers of torch run on the batch
rows        each example has a pass of its own: whatever the code does, it does it to one example
checked     the whole batch at once: for library code, which one check has compared with rows alone
auto        the rule: library code is ``checked``, a user's own is ``isolated``, or ``rows`` where
            torch has no rule for it (``fedlsg.gradients.isolation.levels``)
"""

from typing import Literal, get_args

Isolation = Literal["isolated", "rows", "checked"]
Wanted = Literal["auto", "isolated", "rows", "checked"]
LEVELS: tuple[Isolation, ...] = get_args(Isolation)
CHECKED: Isolation = "checked"
"""The level of entries and runs that name none."""
