"""Which Flower node holds which partition: node ids are random in every run, partitions are what a run knows."""

import time
from collections.abc import Sequence

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from strategies.code_identity import RECORD, check_same_code, code_record
from strategies.wire import read_identity

CONNECT_SECONDS = 120.0


def wait_for_nodes(grid: Grid, count: int) -> list[int]:
    """Node ids, once at least ``count`` are there; they are unknown at first. Raises RuntimeError after two minutes."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while len(nodes := list(grid.get_node_ids())) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"the run has {count} clients, the federation only {len(nodes)} nodes; "
                f'for a simulation give flwr run --federation-config "num-supernodes={count}"'
            )
        time.sleep(0.1)
    return nodes


def find_partitions(grid: Grid, declared: Sequence[int], timeout: float) -> dict[int, int]:
    """Node id of every partition. Node ids are random: ask each node once. Nodes beyond the run's clients stay idle.

    Raises RuntimeError if a partition is missing, has another number of examples than declared, or runs other code.
    """
    nodes = wait_for_nodes(grid, len(declared))
    questions = [Message(RecordDict({RECORD: code_record()}), node, MessageType.QUERY) for node in nodes]
    patience = max(timeout, CONNECT_SECONDS)  # the first message also starts the clients
    replies = grid.send_and_receive(questions, timeout=patience)
    found: dict[int, int] = {}
    for reply in replies:
        if reply.has_error():
            raise RuntimeError(f"a client could not start: {reply.error.reason}")
        partition, num_examples = read_identity(reply.content)
        if partition >= len(declared):
            continue
        check_same_code(reply.content, f"client {partition}")
        if declared[partition] != num_examples:
            raise RuntimeError(
                f"client {partition} holds {num_examples} examples, the run declares {list(declared)}: "
                "data, partition settings or seed differ"
            )
        found[partition] = reply.metadata.src_node_id
    if missing := sorted(set(range(len(declared))) - found.keys()):
        raise RuntimeError(
            f"no client that answered holds partitions {missing}: "
            f"give the federation {len(declared)} nodes, or more time"
        )
    return found
