"""Clients that misbehave, one kind a partition; partitions beyond the kinds are honest.

Importable on its own: Ray's workers import it by name.
"""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedlsg.payload.layout import CHECKSUM_BYTES, HEADER, MAGIC, VERSION
from fedlsg.simulations.client.client_app import app as honest
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.strategies.protocol.wire import IN_RUN_LOG, read_update, update

Payload = Callable[[bytes], bytes]


def raise_before(message: Message, context: Context) -> Message:
    raise RuntimeError("planted failure before training")


def raise_after(message: Message, context: Context) -> Message:
    honest(message, context)
    raise RuntimeError(
        "x" * 200_000 + "planted failure, after training,\nwith commas and a line break"
    )


def answer_none(message: Message, context: Context) -> Message | None:
    honest(message, context)
    return None


def answer_empty(message: Message, context: Context) -> Message:
    honest(message, context)
    return Message(RecordDict(), reply_to=message)


def answer_without_payload(message: Message, context: Context) -> Message:
    honest(message, context)
    return Message(RecordDict({"update": ArrayRecord({})}), reply_to=message)


def replay(message: Message, context: Context) -> Message:
    """Send last round's payload again."""
    stored = RunDir(Path(str(message.content["round"]["run_dir"]))).last_payload(
        int(context.node_config["partition-id"])
    )
    previous = stored.read_bytes().split(b"\n", 1)[1] if stored.exists() else None
    reply = honest(message, context)
    return reply if previous is None else Message(update(previous, 0), reply_to=message)


def rebuilt(payload: bytes, body: bytes | None = None, **changes: object) -> bytes:
    """A payload with other header fields or another body, and a checksum that fits."""
    names = ("magic", "version", "codec", "index_mode", "zero", "round", "size", "count", "digest")
    fields = dict(zip(names, HEADER.unpack_from(payload), strict=True))
    body = payload[HEADER.size : -CHECKSUM_BYTES] if body is None else body
    message = HEADER.pack(*(fields | changes).values()) + body
    return message + hashlib.sha256(message).digest()[:CHECKSUM_BYTES]


def with_value(value: float) -> Payload:
    """The first float32 value replaced."""
    return lambda p: rebuilt(p, struct.pack("<f", value) + p[HEADER.size + 4 : -CHECKSUM_BYTES])


def scale(payload: bytes) -> bytes:
    values = np.frombuffer(payload[HEADER.size : -CHECKSUM_BYTES], "<f4")
    return rebuilt(payload, (values * 1000).tobytes())


def other_round(payload: bytes) -> bytes:
    return rebuilt(payload, round=HEADER.unpack_from(payload)[5] + 1)


def half_precision(payload: bytes) -> bytes:
    """As long as expected, but it says that its values are float16."""
    return rebuilt(payload, codec=2)


def flip_bit(payload: bytes) -> bytes:
    middle = len(payload) // 2
    return payload[:middle] + bytes([payload[middle] ^ 1]) + payload[middle + 1 :]


def sending(damage: Payload) -> Callable[[Message, Context], Message]:
    def client(message: Message, context: Context) -> Message:
        payload = read_update(honest(message, context).content)
        return Message(update(damage(payload), 0), reply_to=message)

    return client


@dataclass(frozen=True)
class Bad:
    """What a bad client does, the reason that must be recorded, whether it trained, and whether
    round 1 is bad.
    """

    train: Callable[[Message, Context], Message | None]
    reason: str
    trained: bool = True
    honest_first: bool = False


KINDS: dict[str, Bad] = {
    "raises before training": Bad(raise_before, IN_RUN_LOG, trained=False),
    "raises after training": Bad(raise_after, IN_RUN_LOG),
    "answers None": Bad(answer_none, "no reply"),
    "empty record": Bad(answer_empty, "holds no payload"),
    "record without payload": Bad(answer_without_payload, "holds no payload"),
    "wrong frame digest": Bad(sending(lambda p: rebuilt(p, digest=bytes(32))), "frame digest"),
    "too short": Bad(sending(lambda p: p[:-4]), "payload length"),
    "too long": Bad(sending(lambda p: p + bytes(4)), "payload length"),
    "nothing at all": Bad(sending(lambda p: b""), "payload length"),
    "wrong dtype": Bad(sending(half_precision), "payload (value type|codec)"),
    "wrong magic": Bad(sending(lambda p: rebuilt(p, magic=MAGIC[::-1])), "payload magic"),
    "wrong version": Bad(sending(lambda p: rebuilt(p, version=VERSION + 1)), "payload .*version"),
    "explicit indices": Bad(sending(lambda p: rebuilt(p, index_mode=1)), "payload index mode"),
    "NaN": Bad(sending(with_value(float("nan"))), "not finite"),
    "infinity": Bad(sending(with_value(float("-inf"))), "not finite"),
    "too large": Bad(sending(scale), "norm .* exceeds the bound"),
    "damaged bit": Bad(sending(flip_bit), "checksum"),
    "another round": Bad(sending(other_round), "payload round"),
    "replay of an old payload": Bad(replay, "payload round: expected 2, got 1", honest_first=True),
}
HONEST = 2
app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    return honest(message, context)


@app.train()
def train(message: Message, context: Context) -> Message | None:
    kinds = list(KINDS.values())
    partition = int(context.node_config["partition-id"])
    return (
        kinds[partition].train(message, context)
        if partition < len(kinds)
        else honest(message, context)
    )
