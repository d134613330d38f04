"""The ClientApp as a process of its own that shares nothing with the server: protobuf bytes on stdin and stdout.

Every message comes and goes as its length (four bytes, little-endian) and its bytes. The first argument is the run
config as JSON, the second the number of partitions.
"""

import json
import os
import struct
import sys
from typing import BinaryIO

from flwr.app import Context, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage

from simulations.client.app import app
from simulations.grids.virtual import SHARED


def serve(incoming: BinaryIO, outgoing: BinaryIO, run_config: dict[str, object], num_partitions: int) -> None:
    while header := incoming.read(4):
        message = message_from_proto(ProtoMessage.FromString(incoming.read(*struct.unpack("<I", header))))
        node = message.metadata.dst_node_id
        config = {"partition-id": node % num_partitions, "num-partitions": num_partitions, SHARED: True}
        context = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config=run_config)
        reply = message_to_proto(app(message, context)).SerializeToString()
        outgoing.write(struct.pack("<I", len(reply)) + reply)
        outgoing.flush()


if __name__ == "__main__":
    wire = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not mix with the messages
    serve(sys.stdin.buffer, wire, json.loads(sys.argv[1]), int(sys.argv[2]))
