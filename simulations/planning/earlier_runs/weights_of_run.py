"""Digests of weights that a run has trained, for later processes: these weights are known as
trained on the rows of the run, in any file (``fedlsg.privacy.known_weights``).
"""

from collections.abc import Iterator

from torch import nn

from fedlsg.gradients import trainable
from fedlsg.privacy.known_weights import WEIGHTS
from fedlsg.privacy.trained_weights import MAX_NOTED_PARAMETERS
from fedlsg.privacy.weight_digest import DIGEST_BYTES, digest_of
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import read_model


def remember_weights(plan: Base, run: RunDir) -> None:
    """Keep digests of what a run has trained and written: of its largest parameters that moved."""
    if plan.settings.public_rows is not None:
        return
    before = set(_digests(plan.initial.model()))
    tensors, facts = read_model(run.path)
    trained = sorted(
        (tensors[name] for name in facts["trained"] if name in tensors), key=lambda t: -t.numel()
    )
    moved = [digest for t in trained if (digest := digest_of(t)) not in before]
    whole = [digest.hex() for digest in moved if len(digest) == DIGEST_BYTES]
    WEIGHTS.remember((digest, str(run.path)) for digest in whole[:MAX_NOTED_PARAMETERS])


def _digests(model: nn.Module) -> Iterator[bytes]:
    return map(digest_of, trainable(model).values())
