"""What may happen to gradients before they are sent: one object for each mechanism, found by its
name.

A new mechanism is one ``Kind`` in ``KINDS``. The setting, the ledger, the accountant, budgets,
comparisons and reports ask it: none of them knows a name. Nothing here imports torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedlsg.config.rules import Rule


def gaussian(total: Any, std: float, noise: Any) -> Any:
    """The sum plus independent noise of deviation ``std`` on every coordinate: ``add_gaussian``."""
    from fedlsg.noise import add_gaussian  # which imports torch

    return add_gaussian(total, std, noise)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """``name``: in settings and ledgers. ``clips``: whether gradients are clipped to a norm C.

    ``add``: from a sum, a standard deviation and a stream of secret draws to the noisy sum; None
    where none is added.
    ``private``: whether the output has an epsilon. Then it must be at least as private as the sum
    with Gaussian noise of that deviation on every coordinate (it may add more, or work on the noisy
    sum): this is what a ledger is charged with and what the accountant composes. The audit of
    ``fedlsg.attacks.audit`` looks for a mechanism that adds less.
    ``rules``: what it needs, each with ``of="mechanism=NAME"``.
    """

    name: str
    clips: bool
    add: Callable[[Any, float, Any], Any] | None = None
    private: bool = False
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        if self.private and not (self.clips and self.add):
            raise ValueError(
                f"mechanism {self.name!r}: without a clip and noise it has no epsilon: "
                "private=False"
            )

    @property
    def adds_noise(self) -> bool:
        """Whether noise is added."""
        return self.add is not None

    @property
    def plain(self) -> bool:
        """Whether gradients are sent as they are."""
        return not (self.clips or self.adds_noise)


DP = Kind(name="dp", clips=True, add=gaussian, private=True)
"""The only one that is private."""
KINDS = {
    kind.name: kind
    for kind in (
        DP,
        Kind(name="clip-only", clips=True),
        Kind(name="noise-only", clips=False, add=gaussian),
        Kind(name="none", clips=False),
    )
}
"""All mechanisms, by name."""


def is_silent(name: object) -> bool:
    """Whether a name is that of a mechanism that adds no noise."""
    return name in KINDS and not KINDS[str(name)].adds_noise
