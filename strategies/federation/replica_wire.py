"""What a client with a replica of the public state is sent instead of the weights, as Flower records.

replica  version of the announced weights, version that the message starts from, SHA-256 of the weights
steps    the updates from one version to the other (``fedlsg.state.Step``); none if they are equal
weights  the whole model, if that is smaller or the replica was lost
state    with the whole model: the state that a replica continues from; without it the client has no replica afterwards
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedlsg.state import Step, StepError
from fedlsg.state.server_update import read_steps
from strategies.federation.serial import config_in
from strategies.federation.wire import raw_array, read_array

NOWHERE = -1
"""The base of a message whose weights no replica continues from."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """``version`` counts the steps since the initial model; ``base`` is the version that the message starts from."""

    version: int
    base: int
    digest: bytes


Records = dict[str, ArrayRecord | ConfigRecord]


def digest_of(weights: Tensor) -> bytes:
    """SHA-256 of flat float32 weights, encoded as in a message."""
    return hashlib.sha256(weights.detach().cpu().numpy().tobytes()).digest()


def catch_up(reference: Reference, steps: Sequence[bytes]) -> Records:
    """Records for a replica at ``reference.base``."""
    records: Records = {"replica": ConfigRecord(asdict(reference))}
    if steps:
        joined = np.frombuffer(b"".join(steps), np.uint8)
        records["steps"] = ArrayRecord({"updates": raw_array(joined)})
    return records


def whole(reference: Reference, weights: ArrayRecord, state: Mapping[str, Tensor]) -> Records:
    """Records of the whole model; if ``reference.base`` is its version, a replica continues from it."""
    records: Records = {"replica": ConfigRecord(asdict(reference)), "weights": weights}
    if state:
        records["state"] = ArrayRecord({name: raw_array(v.detach().cpu().numpy()) for name, v in state.items()})
    return records


def read_reference(content: RecordDict) -> Reference | None:
    """Which weights are announced; None for a message with full weights and nothing else.

    Raises KeyError or ValueError for a record that is not one.
    """
    config = config_in(content, "replica")
    if config is None:
        return None
    version, base, digest = (config[f.name] for f in fields(Reference))
    if not (isinstance(version, int) and isinstance(base, int) and isinstance(digest, bytes)):
        raise ValueError("the announced version of the model is not valid: expected two numbers and a digest")
    return Reference(version=version, base=base, digest=digest)


def read_missed(content: RecordDict, reference: Reference) -> list[Step]:
    """The steps of a message that starts from ``reference.base``. Raises StepError for anything else."""
    steps = []
    if "steps" in content.array_records:
        steps = read_steps(content.array_records["steps"]["updates"].data)
    if len(steps) != reference.version - reference.base:
        raise StepError(f"{len(steps)} steps from version {reference.base} to {reference.version}")
    return steps


def read_state(content: RecordDict) -> dict[str, Tensor]:
    """The vectors of the ``state`` record, if any."""
    record = content.array_records.get("state")
    return {} if record is None else {name: torch.from_numpy(read_array(record[name])) for name in record}
