"""Which weights of this process a private loop has trained, on which ledger: a second loop must not count anew.

A second loop on the same weights with a temporary ledger of its own would claim an epsilon that leaves out the first.
Weights that were changed since (loaded, initialised) are new ones: what they are is their owner's statement.
"""

from dataclasses import dataclass

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from fedlsg.gradients import trainable
from fedlsg.own_loop.account import Account


@dataclass(frozen=True)
class Mark:
    """A parameter as a private step left it: the version and the place of its memory, and the ledger of the step."""

    version: int
    memory: int
    ledger: str


_TRAINED: WeakIdKeyDictionary = WeakIdKeyDictionary()


def note_trained(model: nn.Module, account: Account) -> None:
    """Remember that the model's trainable parameters are what steps on this ledger made of them."""
    ledger = str(account.ledger.path.resolve())
    for p in trainable(model).values():
        _TRAINED[p] = Mark(p._version, p.data_ptr(), ledger)


def check_untrained(model: nn.Module, account: Account) -> None:
    """Raise ValueError for a temporary ledger, if a parameter is what steps on another ledger made of it."""
    if account.lasting:
        return
    for name, p in model.named_parameters():
        mark = _TRAINED.get(p)
        if mark is not None and (mark.version, mark.memory) == (p._version, p.data_ptr()):
            raise ValueError(
                f"{name} was trained by an earlier PrivateStep, whose steps a new temporary ledger would not count: "
                "give both the same ledger=PATH, one file for each data set; if the data are others, give this one a "
                "ledger=PATH of its own; or start from new weights"
            )
