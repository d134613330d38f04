"""What nodes may send to a real SuperLink: thousands of messages that no honest node sends, and a
run that goes on.

    python -m benchmarks.flower.node_fuzz [--messages 10000] [--clients 300] [--seed 0]
    python -m benchmarks.flower.node_fuzz --messages 2 --clients 3 --text-mb 200      one node,
                                                                                      errors with
                                                                                      long texts

The nodes speak SuperLink's API for nodes by Flower's own code, without a SuperNode: they can send
what no ClientApp could, such as objects that are not messages. A tenth of them is honest
(``false_node``). None trains. Prints how the run ended, how many replies of which kind were sent,
how many were rejected, and the peak memory of Flower's processes. A message takes 20 to 30 requests
to the SuperLink, on both of its sides.
"""

import argparse
import hashlib
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_children_ids_from_object_content,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supernode.fleet_http_connection import http_request_response

from benchmarks.flower.false_node import FalseNode
from benchmarks.flower.flower_app import Flower, private_flower, write_app
from benchmarks.flower.flower_processes import carrying
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.lock import create
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir

GARBAGE = 0.05
"""Share of replies that are not messages at all."""
IDLE_SECONDS = (0.5, 30.0)
"""Between two looks of a node for a message: at first, and at most. The first node's message wakes
all others.
"""
THREADS = 4
SETTINGS: dict[str, Any] = {
    "workload": "digits",
    "method": "dpsgd",
    "codec": "float32",
    "sample_rate": 0.05,
    "noise_multiplier": 20.0,
    "delta": 1e-5,
    "reproducible": False,
    "round_timeout": 300.0,
}


class RawNode:
    """A node of a SuperLink without a SuperNode; ``node`` says what it answers."""

    def __init__(self, node: FalseNode, calls: tuple[Any, ...]) -> None:
        self.node, self.sent, self.errors = node, Counter[str](), Counter[str]()
        self.due = self.idle = 0.0
        self.id, self._receive, self._send, _, _, self._pull_now, self._push, self._confirm = calls

    def _pull(self, run: int, name: str) -> bytes:
        """An object, once the server has uploaded it."""
        found = pull_objects(
            [name], lambda one: self._pull_now(run, one), initial_backoff=0.2, max_time=20
        )
        return found[name]

    def look(self) -> bool:
        """Answer one message if there is one, and say when to look again."""
        try:
            found = self.answer()
        except Exception as error:  # Flower's own client refuses it, or the SuperLink
            self.sent[f"not sent: {type(error).__name__}"] += 1
            self.errors[f"{type(error).__name__}: {error}"[:200]] += 1
            found = True
        first, most = IDLE_SECONDS
        self.idle = 0.0 if found else min(max(2 * self.idle, first), most)
        self.due = time.monotonic() + self.idle
        return found

    def answer(self) -> bool:
        """Answer one message if there is one."""
        found = self._receive()
        if found is None:
            return False
        message, tree = found
        run = message.metadata.run_id
        self._fill(message, tree, run)
        if self.node.chance and self.node.rng.random() < GARBAGE:
            self._answer_garbage(message, run)
            return True
        reply = self.node.reply(message)
        self.sent[self.node.sent[-1]] += 1
        reply.metadata.__dict__["_message_id"] = reply.object_id
        contents = {name: one.deflate() for name, one in get_all_nested_objects(reply).items()}
        # Of false metadata the SuperLink reads the envelope alone, and drops a reply to another's
        # message.
        envelope = reply if reply.has_error() else Message(RecordDict(), reply_to=message)
        envelope.metadata.__dict__["_message_id"] = reply.object_id
        self._upload(envelope, get_object_tree(reply), contents, run)
        return True

    def _fill(self, message: Message, tree: ObjectTree, run: int) -> None:
        """Give a message the records with names and numbers; weights are left where they are."""
        head = self._pull(run, tree.object_id)
        (content,) = get_object_children_ids_from_object_content(head)
        names: dict[str, str] = json.loads(get_object_body(self._pull(run, content), RecordDict))
        records = {
            name: self._pull(run, names[name]) for name in ("round", "ledger") if name in names
        }
        message.content = RecordDict(
            {name: ConfigRecord.inflate(record) for name, record in records.items()}
        )
        self._confirm(run, tree.object_id)

    def _answer_garbage(self, message: Message, run: int) -> None:
        """Objects that are not messages, in a deep tree; a reply whose objects never come is
        lost to Flower.
        """
        rng = self.node.rng
        reply = self.node.honest(message)
        how = rng.choice(
            ("body", "child", "deep", "other", "json") if rng.random() > 0.01 else ("missing",)
        )
        self.sent[f"garbage: {how}"] += 1
        head, content = reply.deflate(), reply.content.deflate()
        child, contents = "", dict[str, bytes]()
        if how in ("child", "json"):
            child_of = b"[" * 10**5 if how == "json" else rng.randbytes(40)
            child, contents = _object("RecordDict", "", child_of)
        elif how == "deep":
            for _ in range(rng.choice([40, 90])):
                child, one = _object("RecordDict", child, b"{}")
                contents |= one
        body = {"body": rng.randbytes(60), "other": content}.get(
            how, get_object_body(head, Message)
        )
        name, one = _object("Array" if how == "other" else "Message", child, body)
        contents |= one
        reply.metadata.__dict__["_message_id"] = name
        self._upload(reply, _tree(name, contents), {} if how == "missing" else contents, run)

    def _upload(
        self, reply: Message, tree: ObjectTree, contents: dict[str, bytes], run: int
    ) -> None:
        wanted, session = self._send(reply, tree, 0.0)
        for name in wanted & contents.keys():
            self._push(run, session, name, contents[name])


def _object(kind: str, child: str, body: bytes) -> tuple[str, dict[str, bytes]]:
    """An object of Flower's form by its id."""
    content = f"{kind} {child} {len(body)}".encode() + b"\x00" + body
    name = hashlib.sha256(content).hexdigest()
    return name, {name: content}


def _tree(name: str, contents: dict[str, bytes]) -> ObjectTree:
    children = [
        child
        for child in contents[name].split(b"\x00", 1)[0].decode().split(" ")[1].split(",")
        if child
    ]
    return ObjectTree(object_id=name, children=[_tree(child, contents) for child in children])


def long_texts(node: FalseNode, *, megabytes: int) -> None:
    """Let a node answer each announcement with an error whose text is so long."""

    def reply(message: Message) -> Message:
        node.sent.append(
            "honest" if message.metadata.message_type == "query" else f"text of {megabytes} MB"
        )
        if node.sent[-1] == "honest":
            return node.honest(message)
        return Message(Error(code=0, reason="x" * (megabytes * 10**6)), reply_to=message)

    node.chance = 0.0
    vars(node)["reply"] = reply


def peak_memory(home: Path) -> dict[str, int]:
    """Peak resident MB of a run's processes by their program."""
    found: dict[str, int] = {}
    for pid in carrying(home):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        name = next(
            (Path(word).name for word in words if "flwr" in Path(word).name or "flower" in word),
            words[0],
        )
        peak = int(status.partition("VmHWM:")[2].split()[0]) // 1024 if "VmHWM:" in status else 0
        found[name] = max(found.get(name, 0), peak)
    return found


def fuzz(
    folder: Path,
    *,
    messages: int,
    clients: int,
    seed: int,
    patience: float = 3600.0,
    change: Callable[[FalseNode], None] = lambda node: None,
) -> dict[str, Any]:
    """A run with so many false messages; what it left. ``change``: of the false nodes."""
    honest = max(clients // 10, 2)
    rounds = -(-messages // (clients - honest))
    settings = from_mapping(
        {**SETTINGS, "clients": clients, "rounds": rounds, "evaluate_every": max(rounds // 4, 1)}
    )
    plan = make_plan(settings, declared=[300 + client for client in range(clients)])
    directory: RunDir = create(str(folder / "run"), settings)
    asked = replace(
        plan, settings=replace(plan.settings, run_dir=str(directory.path), noise_multiplier=20.0)
    )
    nodes = [
        FalseNode(
            client=client,
            plan=plan,
            rng=random.Random(seed + client),
            chance=0.9 * (client >= honest),
            pairs=20,
        )
        for client in range(clients)
    ]
    for node in nodes[honest:]:
        change(node)
    app = write_app(folder / "app", asked)
    with private_flower(folder / "flower") as flower, ExitStack() as stack:
        raw = [
            RawNode(
                node,
                stack.enter_context(
                    http_request_response(f"127.0.0.1:{flower.port}", insecure=True, max_retries=3)
                ),
            )
            for node in nodes
        ]
        status, memory, seconds = _answer_until(flower, app, raw, patience)
    rows = [Row.parse(row) for row in directory.read_rounds()]
    kinds = sum((one.sent for one in raw), Counter[str]())
    named = {client for row in rows for client in row.rejected.split() if int(client) >= honest}
    return {
        "status": status,
        "seconds": round(seconds),
        "rounds": len(rows),
        "without update": sum(not row.answered for row in rows),
        "honest replies used": sum(int(c) < honest for row in rows for c in row.answered.split()),
        "honest replies rejected": sum(
            int(c) < honest for row in rows for c in row.rejected.split()
        ),
        "false messages": sum(count for kind, count in kinds.items() if kind != "honest"),
        "by kind": dict(kinds.most_common()),
        "rejected": sum(len(row.rejected.split()) for row in rows),
        "named clients": f"{len(named)} of {clients - honest}",
        "longest line of the log": max(map(len, flower.log_file.read_text().splitlines())),
        "run directory MB": round(
            sum(f.stat().st_size for f in directory.path.rglob("*") if f.is_file()) / 1e6, 1
        ),
        "log MB": round(flower.log_file.stat().st_size / 1e6, 1),
        "peak MB": memory,
        "summary": directory.read_summary() if directory.summary.exists() else None,
    }


def _answer_until(
    flower: Flower, app: Path, raw: list[RawNode], patience: float
) -> tuple[str, dict[str, int], float]:
    """Answer for all nodes until the run is over; its status, peak memory and seconds."""
    status: list[str] = []
    running = threading.Thread(
        target=lambda: status.append(flower.run(app, patience=2 * patience)), daemon=True
    )
    start, memory, looked = time.monotonic(), dict[str, int](), 0.0
    running.start()
    with ThreadPoolExecutor(THREADS) as pool:
        while running.is_alive() and (now := time.monotonic()) - start < patience:
            due = [one for one in raw if one.due <= now]
            found = dict(zip(due, pool.map(RawNode.look, due), strict=True))
            if found.get(raw[0]):  # all of them are asked in each round
                for one in raw:
                    one.due = one.idle = 0.0
            if now - looked > 10:
                looked, seen = now, peak_memory(flower.home)
                memory |= {name: max(peak, memory.get(name, 0)) for name, peak in seen.items()}
                print(
                    f"{now - start:.0f} s:",
                    sum(sum(one.sent.values()) for one in raw),
                    "messages",
                    file=sys.stderr,
                )
            time.sleep(0.1)
    print("not sent:", dict(sum((one.errors for one in raw), Counter[str]()).most_common(10)))
    return (status[0] if status else "still running"), memory, time.monotonic() - start


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--messages", type=int, default=10_000)
    options.add_argument("--clients", type=int, default=300)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--patience", type=float, default=4 * 3600.0)
    options.add_argument("--text-mb", type=int)
    given = vars(options.parse_args())
    if megabytes := given.pop("text_mb"):
        given["change"] = partial(long_texts, megabytes=megabytes)
    with tempfile.TemporaryDirectory(prefix="node-fuzz-") as folder:
        print(json.dumps(fuzz(Path(folder), **given), indent=2))


if __name__ == "__main__":
    main()
