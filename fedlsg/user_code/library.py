"""Whether code that a pass runs is that of libraries: a first rule, by the names of modules."""

from typing import Any

from torch import nn

LIBRARIES = ("torch.", "transformers.", "simulations.", "fedlsg.", "strategies.")


def own_code(thing: Any) -> str | None:
    """The first part of a model or loss that is a user's own code, in words; None if all is library code."""
    if isinstance(thing, nn.Module):
        for path, module in thing.named_modules():
            hooked = module._forward_hooks or module._forward_pre_hooks
            if hooked or not type(module).__module__.startswith(LIBRARIES):
                return path or type(module).__name__
        return None
    loss = getattr(thing, "loss", thing)
    loss = getattr(loss, "func", loss)
    name = str(getattr(loss, "__module__", type(loss).__module__))
    return None if name.startswith(LIBRARIES) else name
