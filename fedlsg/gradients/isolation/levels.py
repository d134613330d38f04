"""The three levels at which a pass runs a model and its loss.

isolated    code of users runs under ``vmap`` on one example; known layers of torch run on the batch
rows        each example has a pass of its own: whatever the code does, it does it to one example
checked     the whole batch at once: for code of libraries, which one check has compared with rows alone
"""

from typing import Literal, get_args

Isolation = Literal["isolated", "rows", "checked"]
LEVELS: tuple[Isolation, ...] = get_args(Isolation)
