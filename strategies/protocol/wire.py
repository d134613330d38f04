"""The messages between server and clients, as Flower records, and their size as bytes.

    server -> client   announcement: weights (one flat float32 array), round, versions, frame
                       digest, sigma, q, level [for replicas: the updates that lead to these
                       weights, and their digest] [if the mask depends on the server's memory: kept
                       positions as a bitmap] [if a client could not derive the same frame: L, R and
                       kept positions] [if the carriers were probed in a round that it missed: their
                       basis]
    client -> server   update: one payload (``fedlsg.payload.pack``) and the partition that it comes
                       from
    client -> server   identity, once: partition, its declared number of examples N_k, and
                       what it may spend

Only the noisy payload of a reply is computed from a client's data. Most of a message is in its
arrays, which are immutable ``bytes``: to measure a message, it is serialized without them; a copy
shares them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from torch import Tensor

from fedlsg.frame import Coordinates, Frame, Keep
from fedlsg.strategies.protocol.proofs import CODE, code_record

LEAST_EPSILON, MOST_EPSILON, LEAST_DELTA = 0.01, 100.0, 1e-20
"""Ranges of the budget that a client may declare. No noise can be planned for a huge epsilon, or
for an epsilon or a delta near 0, so that one false declaration would end the plan of all.
"""
FAILED, FRAME_DIFFERS, OVER_BUDGET, REPLICA_MISSING, REPLICA_DIFFERS, REFUSED_TERMS = range(
    1001, 1007
)
WORKER_DIED, DISK_FULL, TOO_SLOW, REFUSED_RUN = range(1007, 1011)
"""Error codes of fedlsg's clients; Flower's own are below 1000.

FAILED           any other error
FRAME_DIFFERS    the client derives another frame
OVER_BUDGET      the round would pass the client's budget
REPLICA_MISSING  the client has no replica of the model
REPLICA_DIFFERS  its replica has other weights
REFUSED_TERMS    the round is not what the client agreed to
WORKER_DIED      the process of a simulated client ended
DISK_FULL        the reason is the file
TOO_SLOW         the client stopped at its own limit, or still works on an earlier round
REFUSED_RUN      the run's settings are weaker than the client's terms, at any time
"""
REPLICA_LOST = (REPLICA_MISSING, REPLICA_DIFFERS)
"""Errors after which a client gets the whole model."""
STAGE = "secure sum"
"""Name of the record in a message of a secure sum, see ``stages``."""
NO_REASON = "a client failed, and only its own log says why"
"""The reason of every failure near private data: always the same text."""
IN_RUN_LOG = "a client failed, and run.log in the run directory says why"
"""The same reason in a simulation, in which the run has the client's log."""
LOST = (
    WORKER_DIED,
    ErrorCode.UNKNOWN,
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
)
"""Errors that no client sent: our engines', and Flower's (UNKNOWN: a Ray actor died)."""


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """The announcement of a round, in addition to the weights.

    No field has a default, so that no value can be forgotten.

    round: its number.
    updates: server updates so far.
    frame_digest: of the frame that the client must derive.
    sample_rate: q of the client.
    noise_multiplier: of the client.
    expected_batch: the common divisor of a client's sum.
    run_dir: of the run; empty for a deployed client.
    isolation: the level at which all clients run the code of the model.
    features: digest of the filters and axes that inputs become features with; empty without.
    """

    round: int
    updates: int
    frame_digest: bytes
    sample_rate: float
    noise_multiplier: float
    expected_batch: float
    run_dir: str
    isolation: str
    features: str

    @property
    def common(self) -> "Announcement":
        """The announcement without the terms of one client: equal for all."""
        return replace(self, sample_rate=0.0, noise_multiplier=0.0)


def announced_to(
    common: Mapping[str, ArrayRecord | ConfigRecord],
    announced: Announcement,
    known: dict[Announcement, ConfigRecord] | None = None,
) -> RecordDict:
    """One client's message: records that all clients share, without a copy, and its own terms.

    known: records of terms, which clients of equal terms share; the function adds to it.
    """
    known = {} if known is None else known
    if announced not in known:
        known[announced] = ConfigRecord(dict(vars(announced)))
    content = RecordDict({"round": known[announced]})
    for name in common:
        content[name] = common[name]
    return content


def frame_record(frame: Frame, *, carriers: bool = True) -> ArrayRecord:
    """Kept positions of a frame, and its L and R unless those come in another record."""
    where = frame if frame.sent is None else frame.sent
    sent = where.carriers if carriers else ()
    return ArrayRecord(
        {"indices": raw_array(where.indices.numpy().astype("<u4"))}
        | {f"carrier-{i:04d}": raw_array(t.cpu().numpy()) for i, t in enumerate(sent)}
    )


def kept_record(ranked: Frame) -> ArrayRecord:
    """Kept positions of a frame, one bit for each coordinate."""
    kept = np.zeros(ranked.size, dtype=np.uint8)
    kept[ranked.indices.numpy()] = 1
    return ArrayRecord({"bitmap": raw_array(np.packbits(kept))})


def read_kept(content: RecordDict, size: int) -> Tensor | None:
    """Kept positions, ascending, from a bitmap over ``size`` coordinates; None without one.

    Raises ValueError for a bitmap of another size.
    """
    record = arrays_in(content, "kept")
    if record is None:
        return None
    packed = read_array(record["bitmap"])
    if packed.dtype != np.uint8 or packed.shape != ((size + 7) // 8,):
        raise ValueError(
            f"expected a bitmap of {size} coordinates, got {packed.dtype} {packed.shape}"
        )
    return torch.from_numpy(np.unpackbits(packed, count=size).nonzero()[0])


def read_round(content: RecordDict) -> Announcement:
    """The announcement of a train message; KeyError for anything else."""
    config = config_in(content, "round")
    if config is None:
        raise KeyError("round")
    return _announcement(*_VALUES(dict(config.items())))


_ANNOUNCED = tuple(f.name for f in fields(Announcement))
_VALUES = itemgetter(*_ANNOUNCED)


@lru_cache(maxsize=16, typed=True)  # by its arguments alone: never stale
def _announcement(*values: Any) -> Announcement:
    """An announcement; cached, because clients of equal terms read the same one several times."""
    return Announcement(**dict(zip(_ANNOUNCED, values, strict=True)))


def flat_bytes(content: RecordDict) -> bytes:
    """The bytes of the weights in a train message; KeyError if there are none."""
    return _weights(content).data


def read_weights(content: RecordDict) -> Tensor:
    """The weights of a train message; KeyError or ValueError for anything else."""
    return torch.from_numpy(read_array(_weights(content)))


def _weights(content: RecordDict) -> Array:
    record = arrays_in(content, "weights")
    if record is None:
        raise KeyError("weights")
    return record["flat"]


def read_frame(content: RecordDict, derived: Frame) -> Frame | None:
    """The frame of a train message; None without one.

    derived: a frame with the names and shapes, which are public.
    """
    record = arrays_in(content, "frame")
    if record is None:
        return None
    carriers = [record[name] for name in sorted(record) if name.startswith("carrier-")]
    tensors = iter([torch.from_numpy(read_array(array)) for array in carriers])
    if derived.sent is not None:
        coordinates = tuple(
            _received(c, tensors) if c.carried else c for c in derived.sent.coordinates
        )
        return replace(derived, sent=replace(derived.sent, coordinates=coordinates))
    coordinates = tuple(
        _received(c, tensors) if c.carried and carriers else c for c in derived.coordinates
    )
    positions = read_array(record["indices"])
    if positions.dtype != np.uint32 or positions.ndim != 1:
        raise ValueError(f"expected kept positions, got {positions.dtype} {positions.shape}")
    kept = torch.from_numpy(positions.astype(np.int64))
    blocks, start = [], 0
    for block in derived.blocks:
        inside = kept[(kept >= start) & (kept < start + block.size)] - start
        blocks.append(replace(block, keep=Keep(index=inside)))
        start += block.size
    return Frame(coordinates=coordinates, blocks=tuple(blocks), personal=derived.personal)


def _received(coordinates: Coordinates, tensors: Iterator[Tensor]) -> Coordinates:
    """The coordinates with the next two tensors as L and R."""
    L, R = next(tensors), next(tensors)
    return replace(coordinates, L=L.to(coordinates.L), R=R.to(coordinates.R))


def stage_of(content: RecordDict) -> str | None:
    """The stage of a secure sum in a message; None for other messages, "" for an unnamed stage."""
    record = config_in(content, STAGE)
    return None if record is None else str(record.get("stage", ""))


def update(payload: bytes, partition: int) -> RecordDict:
    """Content of a reply: the payload in one raw array, and its partition."""
    arrays = ArrayRecord()
    # an item: a dict of them would be copied
    arrays["payload"] = Array("uint8", (len(payload),), "raw", payload)
    return RecordDict({"update": arrays, "from": ConfigRecord({"partition": partition})})


def read_update(content: RecordDict) -> bytes:
    """The payload bytes of a reply; ValueError if there are none."""
    record = arrays_in(content, "update")
    if record is None or "payload" not in record:
        raise ValueError("the reply holds no payload")
    return record["payload"].data


def is_reply_to(reply: Message, name: str, message: Message) -> bool:
    """Whether a reply belongs to ``message``, whose id is ``name``.

    Both ids are compared, because the sender writes the metadata of a reply.
    """
    sent_by = reply.metadata.src_node_id
    return reply.metadata.reply_to_message_id == name and (
        reply.has_error() or sent_by == message.metadata.dst_node_id
    )


def identity(
    partition: int,
    num_examples: int,
    *,
    epsilon: float = 0.0,
    delta: float = 0.0,
    most: tuple[float, float] = (0.0, 0.0),
    local: bool = True,
) -> RecordDict:
    """Content of a reply to the query for a client's identity, with the code that it runs.

    partition: which client it is.
    num_examples: N_k.
    epsilon: that it may spend in a run; 0: as the run says.
    delta: likewise.
    most: (epsilon, delta) that its data may spend over all runs; 0 without such a limit.
    local: whether the reply stays on this machine, so that it may name a folder.
    """
    record = ConfigRecord(
        {
            "partition": partition,
            "num-examples": num_examples,
            "epsilon": float(epsilon),
            "delta": float(delta),
            "epsilon-max": float(most[0]),
            "delta-max": float(most[1]),
        }
    )
    return RecordDict({"identity": record, CODE: code_record(local=local)})


def read_identity(content: RecordDict) -> tuple[int, int, tuple[float, float]]:
    """Partition, N_k, and (epsilon, delta) of an identity.

    Raises ValueError, which quotes nothing, for anything else.
    """
    record: Mapping[str, object] = content.config_records.get("identity", {})
    partition, num_examples = record.get("partition"), record.get("num-examples")
    if type(partition) is not int or type(num_examples) is not int:
        raise ValueError(
            "expected the whole numbers partition and num-examples of an identity, got something "
            "else"
        )
    epsilon = record.get("epsilon", 0.0)
    if type(epsilon) is not float or not (epsilon == 0 or LEAST_EPSILON <= epsilon <= MOST_EPSILON):
        raise ValueError(
            f"expected an epsilon from {LEAST_EPSILON:g} to at most {MOST_EPSILON:g} in an "
            "identity, got something else"
        )
    delta = record.get("delta", 0.0)
    if type(delta) is not float or not (delta == 0 or LEAST_DELTA <= delta < 1):
        raise ValueError(
            f"expected {LEAST_DELTA:g} <= delta < 1 in an identity, got something else"
        )
    return partition, num_examples, (epsilon, delta)


def read_most(content: RecordDict) -> tuple[float, float] | None:
    """(epsilon, delta) that a client's data may spend over all runs; None without such a limit.

    Raises ValueError, which quotes nothing, for other numbers.
    """
    record: Mapping[str, object] = content.config_records.get("identity", {})
    epsilon, delta = record.get("epsilon-max", 0.0), record.get("delta-max", 0.0)
    if epsilon == delta == 0:
        return None
    if type(epsilon) is not float or type(delta) is not float:
        raise ValueError("expected numbers as epsilon-max and delta-max of an identity")
    if not (0 < epsilon < math.inf and LEAST_DELTA <= delta < 1):
        raise ValueError(
            f"expected a finite epsilon-max > 0 and {LEAST_DELTA:g} <= delta-max < 1 in an "
            "identity, got something else"
        )
    return epsilon, delta


def failure(reason: str, code: int, message: Message) -> Message:
    """A reply that reports an error; without a reply the round would wait until its timeout.

    ``reason`` leaves the client: it must not quote an exception that was raised near private data.
    """
    return Message(Error(code=code, reason=reason), reply_to=message)


def flat_record(weights: Tensor) -> ArrayRecord:
    """The weights as one flat float32 array; many small arrays would have more header than data."""
    return ArrayRecord({"flat": raw_array(weights.detach().cpu().numpy())})


def raw_array(values: np.ndarray) -> Array:
    """An Array without the 128-byte .npy header."""
    return Array(
        dtype=values.dtype.str, shape=tuple(values.shape), stype="raw", data=values.tobytes()
    )


def read_array(array: Array) -> np.ndarray:
    """A writable copy of an array of ``raw_array``.

    Raises ValueError for another encoding, or a wrong length.
    """
    if array.stype != "raw":
        raise ValueError(f"expected an array of stype 'raw', got {array.stype!r}")
    try:
        dtype = np.dtype(array.dtype)
    except (TypeError, SyntaxError):
        dtype = np.dtype(object)
    if dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise ValueError(f"expected an array of numbers, got dtype {array.dtype!r}")
    return np.frombuffer(bytearray(array.data), dtype=dtype).reshape(array.shape)


def array_bytes(records: Iterable[object]) -> int:
    """Bytes of the arrays in records."""
    size = 0
    for record in records:
        if isinstance(record, ArrayRecord):
            size += sum(len(array.data) for array in record.values())
    return size


def config_in(content: RecordDict, name: str) -> ConfigRecord | None:
    """A config record; None without one. (``content.config_records`` copies all at each access.)"""
    record = content[name] if name in content else None  # noqa: SIM401 ``get`` raises and catches an error
    return record if record is not None and isinstance(record, ConfigRecord) else None


def arrays_in(content: RecordDict, name: str) -> ArrayRecord | None:
    """An array record; None without one."""
    record = content[name] if name in content else None  # noqa: SIM401 as above
    return record if record is not None and isinstance(record, ArrayRecord) else None


def over_the_wire(message: Message) -> Message:
    """A copy of a message as it arrives; it shares only immutable values, such as data of arrays.

    Records accept serializable values alone, so that a real transport would change nothing.
    """
    if not message.has_content():
        return message_from_proto(message_to_proto(message))
    content = message.content.copy()
    for name, record in content.items():
        copied: Any = record.copy()
        content[name] = copied
        copied.update(
            {key: copy(value) for key, value in copied.items() if isinstance(value, Array | list)}
        )
    return Message(metadata=copy(message.metadata), content=content)  # type: ignore[call-overload, no-any-return]
