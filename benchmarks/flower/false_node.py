"""A node that answers without training: like an honest one, or with one of many kinds of what no
honest node sends.

For tests and for ``node_fuzz``. Every kind is a function of a plausible reply; ``KINDS`` has them
by name.
"""

import json
import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedlsg.payload import pack
from fedlsg.privacy import Entry
from fedlsg.privacy.ledger_entry import GENESIS, encode_entry, encode_header, encode_line, sha256
from fedlsg.simulations.planning.plan import Plan
from fedlsg.strategies.protocol.proofs import RECORD, News, news_record, read_held
from fedlsg.strategies.protocol.wire import identity, read_round, read_update, update

ODD_NUMBERS = (
    -1,
    0,
    1,
    2**31,
    2**53 + 1,
    2**62,
    -(2**62),
    0.5,
    math.nan,
    math.inf,
    5e-324,
    1e308,
    True,
    "1",
    b"1",
)
TEXTS = (
    "",
    "\x1b[2J\x07\r\n",
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "\u202e\ufeff\U0001f4a9" * 50,
    "[1004] [1003] [404]",
    "a " * 500_000,
    "\udc80".encode("utf-8", "replace").decode() * 9,
    "x" * 10**7,
    "%s%n{0}",
)
CODES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 404, -1, 2**31, *range(1001, 1010))
"""Flower's error codes, our own, and others."""
ODD_ENTRIES: tuple[dict[str, Any], ...] = (
    {"sample_rate": 1.0, "noise_multiplier": 1e-300},
    {"noise_multiplier": 1e-300},
    {"noise_multiplier": 1e308},
    {"sample_rate": 5e-324},
    {"sample_rate": 1.0, "noise_multiplier": 0.021, "steps": 2**53},
    {"log_ratio": 1e300},
    {"sample_rate": 1.0, "batches": 1, "steps": 2**53},
    {"mechanism": "none", "noise_multiplier": 0.0},
    {"clip_norm": 5e-324},
    {"num_examples": 2**53},
    {"round": 2**53},
    {"attempt": 2**53},
    {"run": "\u202e" * 64},
    {"noise_multiplier": 0.02, "steps": 2**53},
    {"min_survivors": 2**53, "colluders": 1},
    {"clip_norm": 1e308},
)


@dataclass(kw_only=True)
class FalseNode:
    """A client of ``plan`` with a ledger in memory.

    chance: of a reply that no honest node sends; to a query, a third of it. pairs: different
    settings that it adds to its ledger at once.
    """

    client: int
    plan: Plan
    rng: random.Random
    chance: float = 0.9
    pairs: int = 400
    sent: list[str] = field(default_factory=list)
    _lines: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lines.append(encode_header(self.client))
        state = self.plan.initial.server()
        common = state.plan(self.plan.local, self.plan.sums, self.plan.unit)
        terms = self.plan.terms[self.client]
        self.examples, self._frame = terms.num_examples, common.frame.wire
        self._charge = common.for_client(terms).charge(self.examples)

    def reply(self, message: Message) -> Message:
        """An answer to a query or to an announcement."""
        honest = self.honest(message)
        chance = self.chance / 3 if message.metadata.message_type == "query" else self.chance
        kind = "honest" if self.rng.random() >= chance else self.rng.choice(list(KINDS))
        self.sent.append(kind)
        return honest if kind == "honest" else KINDS[kind](honest, self)

    def honest(self, message: Message) -> Message:
        """What the server accepts: no noise and no training, but nothing that it could see."""
        if message.metadata.message_type == "query":
            content, head = identity(self.client, self.examples, local=False), GENESIS
        else:
            announced, held = read_round(message.content), read_held(message.content)
            assert held is not None
            head, k = held.head, len(self._frame.indices)
            self.append(round=announced.round, run=held.run)
            payload = pack(
                torch.zeros(k),
                torch.arange(k),
                size=self._frame.size,
                round=announced.round,
                digest=announced.frame_digest,
                codec="float32",
            )
            content = update(payload, self.client)
        content[RECORD] = news_record(self.news(head))
        return Message(content, reply_to=message)

    def entry(self, **changes: Any) -> dict[str, Any]:
        """JSON values of a charge, with changes that an ``Entry`` might refuse."""
        values = encode_entry(Entry(client=self.client, round=1, attempt=0, **self._charge))
        return values | {"attempt": len(self._lines)} | changes

    def append(self, **changes: Any) -> None:
        """One more charge."""
        self._lines.append(encode_line(self.entry(**changes), sha256(self._lines[-1])))

    def news(self, head: str = GENESIS) -> News:
        """The lines that follow ``head``; all of them if there is no such line."""
        heads = [sha256(line) for line in self._lines]
        start = heads.index(head) + 1 if head in heads else 0
        return News(lines=b"".join(line + b"\n" for line in self._lines[start:]), head=heads[-1])


Kind = Callable[[Message, FalseNode], Message]


def _instead(content: RecordDict | Error, reply: Message) -> Message:
    """The reply with another content and the same metadata."""
    error = (
        {"_error": content, "_content": None}
        if isinstance(content, Error)
        else {"_content": content}
    )
    reply.__dict__.update(error)
    return reply


def error(reply: Message, node: FalseNode) -> Message:
    return _instead(Error(code=node.rng.choice(CODES), reason=node.rng.choice(TEXTS)), reply)


def records(reply: Message, node: FalseNode) -> Message:
    """One record less, of another type, or many more."""
    content, names = reply.content, list(reply.content)
    name = node.rng.choice(names)
    odd = [
        ConfigRecord({"a": 1}),
        MetricRecord({"a": math.nan, "b": [math.inf] * 9}),
        ArrayRecord({}),
        ConfigRecord({}),
        ConfigRecord({"k" * 10**5: "v" * 10**6}),
        MetricRecord({str(n): 1e308 for n in range(100)}),
    ]
    how = node.rng.randrange(3)
    more = {f"more-{n}": ConfigRecord({"a": n}) for n in range(40 if how == 2 else 0)}
    kept = {key: content[key] for key in names if key != name}
    return _instead(
        RecordDict(kept | ({name: node.rng.choice(odd)} if how == 1 else {}) | more), reply
    )


def identities(reply: Message, node: FalseNode) -> Message:
    """Another client, another N_k, or what is not a number."""
    who = [
        node.rng.choice([*ODD_NUMBERS, node.client, node.client + 1]),
        node.rng.choice([*ODD_NUMBERS, 10**12]),
    ]
    reply.content["identity"] = ConfigRecord({"partition": who[0], "num-examples": who[1]})
    return reply


def ledgers(reply: Message, node: FalseNode) -> Message:
    """Lines that are damaged, too many, nested, or whose entries are odd though their chain is
    right.
    """
    news, rng = node.news(), node.rng
    before = list(node._lines)
    lines, head = news.lines, news.head
    how = rng.randrange(7)
    if how == 0:
        lines = flipped(lines, rng)
    elif how == 1:
        lines = lines[: rng.randrange(len(lines))]
    elif how == 2:
        lines, head = b'{"a":' + b"[" * rng.choice([9, 10**5]) + b"}\n", rng.choice(TEXTS)[:100]
    elif how == 3:
        lines = lines + b"\xff\x00}\n" * rng.choice([1, 10**5])
    elif how == 4:
        lines = lines * rng.choice([2, max(2, 10**7 // len(lines))])
    else:
        odd = [rng.choice(ODD_ENTRIES)] if how == 5 else [_pair(rng) for _ in range(node.pairs)]
        for changes in odd:
            body = node.entry(**({"run": "earlier"} | changes))
            line = json.dumps(body | {"prev": sha256(node._lines[-1])}).encode()
            node._lines.append(line[:-1] + b', "sha256": "' + sha256(line).encode() + b'"}')
        lines, head = (found := node.news()).lines, found.head
        if how == 5:
            node._lines[:] = before
    reply.content[RECORD] = ConfigRecord({"lines": lines, "head": head})
    return reply


def _pair(rng: random.Random) -> dict[str, Any]:
    return {"sample_rate": rng.uniform(1e-3, 0.2), "noise_multiplier": rng.uniform(0.5, 4)}


def payloads(reply: Message, node: FalseNode) -> Message:
    """Bytes that are damaged, cut or too many; values that are none."""
    rng = node.rng
    try:
        payload = read_update(reply.content)
    except ValueError:  # the answer to a query
        return identities(reply, node)
    value = struct.pack("<f", rng.choice([math.nan, math.inf, -math.inf, 3e38, 1e-45, -0.0]))
    forms = (
        lambda: flipped(payload, rng),
        lambda: payload[: rng.randrange(len(payload))],
        lambda: payload * 3,
        lambda: b"",
        lambda: rng.randbytes(len(payload)),
        lambda: payload[:64] + value + payload[68:],
    )
    data = rng.choice(forms)()
    odd = rng.choice(
        [
            ("uint8", (len(data),), "raw"),
            ("O", (), "numpy.ndarray"),
            ("<f8", (2**62, 2**62, -1), "x" * 99),
        ]
    )
    reply.content["update"] = ArrayRecord({"payload": Array(*odd, data=data)})
    return reply


def metadata(reply: Message, node: FalseNode) -> Message:
    """A reply that says that it answers another message, or comes from another node."""
    name, value = node.rng.choice(
        [
            ("reply_to_message_id", "0" * 64),
            ("src_node_id", 7),
            ("message_type", "evaluate"),
            ("group_id", "x" * 9999),
            ("run_id", 1),
            ("dst_node_id", 5),
            ("created_at", 0.0),
            ("ttl", -1.0),
        ]
    )
    reply.metadata.__dict__[f"_{name}"] = value
    return reply


def flipped(data: bytes, rng: random.Random) -> bytes:
    """One bit of it changed."""
    place = rng.randrange(max(len(data), 1))
    return (
        data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
        if data
        else b"\0"
    )


KINDS: dict[str, Kind] = {
    "error": error,
    "records": records,
    "identity": identities,
    "ledger": ledgers,
    "payload": payloads,
    "metadata": metadata,
}
