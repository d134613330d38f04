"""Flower messages without copying the arrays in them: their size as bytes, and a copy that shares only bytes.

Most of a message is in its arrays, which are immutable ``bytes``. So it is serialized without them for its size.
"""

from copy import copy
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import config_record_to_proto, message_from_proto, message_to_proto, metric_record_to_proto
from flwr.common.serde_utils import metadata_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.recorddict_pb2 import Array as ProtoArray
from flwr.proto.recorddict_pb2 import ArrayRecord as ProtoArrayRecord
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict


def config_in(content: RecordDict, name: str) -> ConfigRecord | None:
    """A config record, None without one. ``content.config_records`` copies all records of its kind at each access."""
    record = content.get(name)
    return record if isinstance(record, ConfigRecord) else None


def arrays_in(content: RecordDict, name: str) -> ArrayRecord | None:
    """An array record, None without one."""
    record = content.get(name)
    return record if isinstance(record, ArrayRecord) else None


def wire_size(message: Message) -> int:
    """Bytes of the whole message as Flower serializes it (protobuf)."""
    proto = _without_data(message)
    extra = 0
    for item, record in zip(proto.content.items, _records(message), strict=True):
        if isinstance(record, ArrayRecord):
            inside = sum(
                _array_growth(i, len(a.data)) for i, a in zip(item.array_record.items, record.values(), strict=True)
            )
            extra += _growth(item.ByteSize(), _growth(item.array_record.ByteSize(), inside))
    return int(proto.ByteSize()) + _growth(proto.content.ByteSize(), extra)


def over_the_wire(message: Message) -> Message:
    """The message as it arrives: a copy that shares only immutable values with it, among them the data of arrays.

    Records refuse whatever cannot be serialized when it is put into them, so nothing would be lost on the way.
    """
    if not message.has_content():
        return message_from_proto(message_to_proto(message))
    content = message.content.copy()
    for name, record in content.items():
        own: Any = record.copy()
        content[name] = own
        for key, value in own.items():
            if isinstance(value, (Array, list)):
                own[key] = copy(value)
    return Message(metadata=copy(message.metadata), content=content)  # type: ignore[call-overload, no-any-return]


def _without_data(message: Message) -> ProtoMessage:
    """Flower's message_to_proto for a message with empty arrays; Flower itself serializes everything else."""
    if not any(isinstance(record, ArrayRecord) for record in _records(message)):
        return message_to_proto(message)
    items = [_item_without_data(name, record) for name, record in message.content.items()]
    return ProtoMessage(metadata=metadata_to_proto(message.metadata), content=ProtoRecordDict(items=items))


def _item_without_data(name: str, record: Any) -> Any:
    if isinstance(record, ConfigRecord):
        return ProtoRecordDict.Item(key=name, config_record=config_record_to_proto(record))
    if not isinstance(record, ArrayRecord):
        return ProtoRecordDict.Item(key=name, metric_record=metric_record_to_proto(record))
    arrays = [
        ProtoArrayRecord.Item(key=key, value=ProtoArray(dtype=a.dtype, shape=a.shape, stype=a.stype))
        for key, a in record.items()
    ]
    return ProtoRecordDict.Item(key=name, array_record=ProtoArrayRecord(items=arrays))


def _records(message: Message) -> list[object]:
    return list(message.content.values()) if message.has_content() else []


def _array_growth(item: Any, data: int) -> int:
    """Bytes that ``data`` bytes add to an item of an ArrayRecord: with a tag and a length, if there are any."""
    own = 1 + _varint(data) + data if data else 0
    return _growth(item.ByteSize(), _growth(item.value.ByteSize(), own))


def _growth(size: int, more: int) -> int:
    """Growth of a nested part, with its length prefix, when ``more`` bytes are added inside."""
    return more + _varint(size + more) - _varint(size)


def _varint(number: int) -> int:
    return max(1, (number.bit_length() + 6) // 7)
