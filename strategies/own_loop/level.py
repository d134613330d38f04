"""The level of isolation of an own loop: what its user said, or that of the rule."""

from torch import nn

from fedlsg.gradients.isolation.levels import resolve
from fedlsg.privacy import Mechanism
from fedlsg.setting.isolation import CHECKED, Isolation, Wanted


def level_of(model: nn.Module, mechanism: Mechanism, wanted: Wanted) -> Isolation:
    """The level at which passes run ``model``, whose adapters are in place.

    Without a clip one example needs no protection from another. Raises ValueError for another word
    than a level, as ``LocalTraining`` does.
    """
    if not mechanism.clips and wanted == "auto":
        return CHECKED
    return resolve(model, wanted, try_isolated)


def try_isolated() -> None:
    """Run the isolated pass on made-up rows. Raises where torch has no rule for the model."""
