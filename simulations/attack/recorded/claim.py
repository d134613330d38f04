"""The epsilon that a run claims, as attacks and audit read it."""

from collections.abc import Sequence

from fedlsg.accounting import Event
from fedlsg.attacks.audit.verdict import Claim


def claim_of(event: Event, epsilon: float, delta: float) -> Claim:
    """The claim of one event."""
    return Claim(
        epsilon=epsilon,
        delta=delta,
        sample_rate=event.sample_rate,
        noise_multiplier=event.noise_multiplier,
        steps=event.steps,
    )


def training_event(events: Sequence[Event]) -> Event:
    """The event of most steps: training, not the pruning round."""
    return max(events, key=lambda event: event.steps)
