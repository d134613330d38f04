"""A warning about a model that is trained in eval mode, in which its dropout does nothing."""

import warnings

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from fedlsg.user_code.short_traceback import user_level


def warn_of_eval_mode(model: nn.Module) -> None:
    """Give a RuntimeWarning if the model is in eval mode and has dropout.

    A part of a model in train mode may be in eval mode: its owner has chosen that, as for frozen
    layers.
    """
    if model.training:
        return
    dropping = [name for name, module in model.named_modules() if _drops(module)]
    if dropping:
        warnings.warn(
            f"the model is in eval mode, so steps train without its dropout ({dropping[0]}): call "
            "model.train() before them, as after model.eval() or from_pretrained(); "
            "step.evaluated() gives the mode back by itself",
            RuntimeWarning,
            stacklevel=user_level(),
        )


def _drops(module: nn.Module) -> bool:
    """Whether a module drops values in train mode, by its own class or a rate in an attribute."""
    rates = [value for name, value in vars(module).items() if "drop" in name]
    if isinstance(module, _DropoutNd) or "StochasticDepth" in type(module).__name__:
        rates.append(module.p)
    return any(isinstance(rate, float) and 0 < rate < 1 for rate in rates)
