"""What of a run's files and numbers may be seen outside the server, and what an epsilon covers."""

from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.storage.declared import EVERYTHING, RELEASED, Released


def released_of(base: Base) -> Released:
    """What of the run may be seen outside the server.

    Everything, unless the server draws clients in secret (``unit.at_server``).
    """
    return RELEASED[base.settings.trust] if base.unit.at_server else EVERYTHING


def is_covered(base: Base) -> bool:
    """Whether an epsilon covers all that the run computes from training rows.

    That needs secret noise and no held-out rows. It is also so if the run trains on public rows:
    they replace the training rows, and there is nothing to cover.
    """
    s = base.settings
    noisy = base.method.mechanism.private and not s.reproducible and s.holdout is None
    return noisy or s.public_rows is not None


def closed_folders(base: Base) -> tuple[str, ...]:
    """Folders of the run directory with numbers that no epsilon covers as they are; "." is all of
    it.

    Under trust=aggregate a payload has a share of the noise. Under trust=server the bytes that an
    interrupted round sent down tell how many clients were drawn.
    """
    whole = () if is_covered(base) else (".",)
    if base.unit.at_server:
        return (*whole, "checkpoint")
    if base.settings.trust == "aggregate":
        return (*whole, "checkpoint/outbox", "updates")
    return whole
