"""What a mask keeps by a user's function of public values, checked before anything is made of it."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from fedlsg.frame import EVERYTHING, Block, Keep
from fedlsg.public import Public, call, name_of

Choose = Callable[[Block, Public], Bool[Tensor, "*shape"]]
"""``choose(block, public)``: True at each coordinate of the block that is kept, in ``block.shape``."""


def keep_chosen(block: Block, choose: Choose, public: Public) -> Keep:
    """What is kept of a block.

    Raises ValueError, naming function and block, unless the choice is boolean, has the block's shape, and keeps
    something.
    """
    kept: Any = call(choose, block, public=public)
    where = f"mask by {name_of(choose)} for the {block.part} block of {block.parameter}"
    if not isinstance(kept, Tensor) or kept.dtype != torch.bool or tuple(kept.shape) != block.shape:
        found = f"{kept.dtype} of shape {tuple(kept.shape)}" if isinstance(kept, Tensor) else type(kept).__name__
        raise ValueError(f"{where}: expected a boolean tensor of shape {block.shape}, got {found}")
    if not bool(kept.any()):
        raise ValueError(f"{where}: expected one coordinate at least that is kept, got none")
    if bool(kept.all()):
        return EVERYTHING
    return Keep(index=kept.flatten().nonzero().squeeze(1).to(public.weights[block.parameter].device))
