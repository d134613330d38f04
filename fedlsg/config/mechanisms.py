"""Mechanisms, which clip gradients and add noise before they are sent: one object for each, found
by its name.

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
    """A kind of mechanism.

    name: in settings and ledgers.
    clips: whether gradients are clipped to a norm C.
    add: ``add(total, std, stream)`` gives the sum with noise of a standard deviation, from a stream
        of secret draws; None if no noise is added.
    private: whether the output has an epsilon. It must then be at least as private as the sum with
        Gaussian noise of that deviation on every coordinate: it may add more, or work on the noisy
        sum. The ledger is charged for this Gaussian noise, and the accountant composes it. The
        audit of ``fedlsg.attacks.audit`` looks for a mechanism that adds less.
    rules: conditions on other settings, each with ``of="mechanism=NAME"``.
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
        """Whether gradients are sent without a clip and without noise."""
        return not (self.clips or self.adds_noise)


DP = Kind(name="dp", clips=True, add=gaussian, private=True)
"""Clip and Gaussian noise: the only private mechanism."""
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
    """Whether this is the name of a mechanism that adds no noise."""
    return name in KINDS and not KINDS[str(name)].adds_noise
