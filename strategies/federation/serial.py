"""Flower messages as bytes, without copying the arrays in them: what they weigh, and a copy that shares only bytes.

The arrays of a message are by far the most of it and are immutable ``bytes``. So a message is serialised without them.
"""

from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common.serde import config_record_to_proto, message_from_proto, message_to_proto, metric_record_to_proto
from flwr.common.serde_utils import metadata_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.recorddict_pb2 import Array as ProtoArray
from flwr.proto.recorddict_pb2 import ArrayRecord as ProtoArrayRecord
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict


def wire_size(message: Message) -> int:
    """Bytes of the whole message as Flower serialises it (protobuf)."""
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
    """The message after serialisation to bytes and back; arrays share their immutable data with the original."""
    copy = message_from_proto(ProtoMessage.FromString(_without_data(message).SerializeToString()))
    if message.has_content():
        for name, record in message.content.array_records.items():
            for key, array in record.items():
                copy.content.array_records[name][key].data = array.data
    return copy


def _without_data(message: Message) -> ProtoMessage:
    """As Flower's message_to_proto, of a message whose arrays are empty; what is not an array it serialises itself."""
    if not message.has_content() or not message.content.array_records:
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
    """What ``data`` bytes add to an item of an ArrayRecord: a tag and a length of their own, where there are any."""
    own = 1 + _varint(data) + data if data else 0
    return _growth(item.ByteSize(), _growth(item.value.ByteSize(), own))


def _growth(size: int, more: int) -> int:
    """What a nested part grows by, its length prefix included, when ``more`` bytes are added inside."""
    return more + _varint(size + more) - _varint(size)


def _varint(number: int) -> int:
    return max(1, (number.bit_length() + 6) // 7)
