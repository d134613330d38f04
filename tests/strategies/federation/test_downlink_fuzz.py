"""Downlink messages, damaged at random or forged with right checksums: refused by name, or a step of bounded size.

1,000 streams and records in the plain tests, 200,000 in the slow ones. Payloads: test_message_fuzz.py.
"""

import hashlib
import random
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from tests.fedlsg.payload.test_message_fuzz import damaged

from fedlsg.frame import Frame
from fedlsg.gradients.supported import trainable
from fedlsg.masks.pruning import prunable
from fedlsg.payload import Codec, find_codec
from fedlsg.payload.layout import HEADER as PAYLOAD_HEADER
from fedlsg.state.server_state import ServerState
from fedlsg.state.server_update import (
    HEADER,
    PRUNING,
    encode_pruning,
    encode_update,
    extra_vectors,
    read_steps,
    replay,
    restart,
)
from strategies.federation.replica_wire import (
    Reference,
    catch_up,
    digest_of,
    read_missed,
    read_reference,
    read_state,
    whole,
)  # fmt: skip
from strategies.federation.wire import (
    flat_record,
    frame_record,
    kept_record,
    raw_array,
    read_frame,
    read_kept,
    read_weights,
)
from tests.strategies.small_federation import server_state, values_for

REFUSED = (ValueError, KeyError)  # what the client's replica and the client itself answer by name
LENGTH = 13
"""Where a step's header says how long its payload is."""


@dataclass(eq=False)
class Subject:
    """A replica before two steps, and the bytes that lead on from it."""

    state: ServerState
    coding: Codec
    stream: bytes
    saved: dict[str, Any]

    def again(self) -> None:
        """Back to where the stream begins."""
        self.state.load_state_dict(self.saved)


def subject(method: str, codec: str, **choices: Any) -> Subject:
    coding = find_codec(codec)
    server, replica = (server_state(method, **choices) for _ in range(2))
    steps = []
    if server.awaits_pruning:
        before = prunable(trainable(server.model))
        frame = server.frame()
        server.prune(frame, [values_for(frame, 0, 0)], num_examples=50)
        steps.append(encode_pruning(before, server))
    for round in (1, 2):
        frame = server.frame()
        step = encode_update(server, frame, values_for(frame, 0, round).double(), noise_std=0.3, codec=coding)
        steps.append(step)
        replay(server, step, coding)
    return Subject(replica, coding, b"".join(step.to_bytes() for step in steps), saved_of(replica))


def saved_of(state: ServerState) -> dict[str, Any]:
    saved = state.state_dict()
    return saved | {"model": {name: value.clone() for name, value in saved["model"].items()}}


SNIP = {"prune": "dp-snip", "prune_rate": 0.4, "drop": "none"}
SUBJECTS: dict[str, Callable[[], Subject]] = {
    **{codec: lambda codec=codec: subject("lsg", codec, momentum=0.0)
       for codec in ("float32", "float16", "bfloat16", "noise-floor", "int8")},
    "chosen": lambda: subject("topk", "float32", topk_rate=0.1),
    "chosen, int8": lambda: subject("topk", "int8", topk_rate=0.1),
    "ranked": lambda: subject("rs", "noise-floor", sparsity=0.7, ranking="gradients", cooling=False),
    "pruned": lambda: subject("dp-ssgd", "noise-floor", **SNIP),
    "adam": lambda: subject("lsg", "noise-floor", momentum=0.0, optimizer="adam", schedule="cosine"),
}  # fmt: skip


def forged(stream: bytes, rng: random.Random, other: bytes) -> bytes:
    """Damaged somewhere; often a false header, or a payload that is sealed again, as only an attacker does."""
    kind = rng.random()
    if kind < 0.4:
        return damaged(stream, rng, other)
    first = HEADER.size + HEADER.unpack_from(stream)[3]
    begin = rng.choice([0, first])
    fields = list(HEADER.unpack_from(stream, begin))
    payload = bytearray(stream[begin + HEADER.size : begin + HEADER.size + fields[3]])
    if kind < 0.7:
        which = rng.randrange(4)
        fields[which] = rng.choice(
            [
                [0, 1, 2, 3, 255],
                [0, 1, 2, 3, 10, 11, 2**31, 2**32 - 1],
                [0.0, -1.0, 5e-324, 1e-30, 1e308, float("inf"), float("nan"), rng.random()],
                [0, 1, len(stream), 2**31, 2**32 - 1],
            ][which]
        )
    elif len(payload) > 60:
        payload[48 if payload[4] == 2 else PAYLOAD_HEADER.size :] = damaged(bytes(payload[48:]), rng, other)[
            : rng.choice([10, 10**6])
        ]
        sealed = bytes(payload[:-16])
        payload = bytearray(sealed + hashlib.sha256(sealed).digest()[:16])
        fields[3] = len(payload)
    elif fields[0] == PRUNING:
        payload = bytearray(rng.randbytes(rng.choice([len(payload), len(payload) + 1])))
        fields[3] = len(payload)
    head = HEADER.pack(*fields)
    return stream[:begin] + head + bytes(payload) + (stream[first:] if not begin else b"")


def fuzz_streams(count: int, seed: int) -> tuple[int, int]:
    """How many of ``count`` spoilt streams a replica took and refused; it never takes on more than its model has."""
    rng = random.Random(seed)
    subjects = [make() for make in SUBJECTS.values()]
    taken = refused = 0
    for _ in range(count):
        one = rng.choice(subjects)
        spoilt = forged(one.stream, rng, rng.choice(subjects).stream)
        moved = False
        try:
            for step in read_steps(spoilt):
                moved = True
                replay(one.state, step, one.coding)
            taken += 1
        except REFUSED:
            refused += 1
        if moved:
            one.again()
    return taken, refused


def test_honest_streams_are_taken():
    for make in SUBJECTS.values():
        one = make()
        before = one.state.weights
        for step in read_steps(one.stream):
            replay(one.state, step, one.coding)
        assert not one.state.weights.equal(before)
        one.again()
        assert one.state.weights.equal(before)


def measured(fuzz: Callable[[int, int], tuple[int, int]], count: int, seed: int) -> tuple[int, int, int]:
    """Taken, refused, and the largest number of bytes that were allocated at once."""
    fuzz(100, 0)  # tables and imports
    tracemalloc.start()
    taken, refused = fuzz(count, seed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return taken, refused, peak


DTYPES = ["<f4", "<f8", "<i8", "|u1", ">f4", "<c8", "|O", "|S0", "|V8", "<U1", "|b1", "M8[s]", "(9999,9999)f4", "x", ""]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (2**40,), (2**62, 0), (-1,), (-5, -1), (3, 7)]


def records() -> tuple[ServerState, RecordDict]:
    """A message with everything that may be in one."""
    state = server_state("rs", sparsity=0.7, ranking="gradients", cooling=False, momentum=0.9)
    frame = state.frame()
    state.finish_round(frame, [values_for(frame, 0, 1)], noise_std=0.3)
    reference = Reference(version=1, base=1, digest=digest_of(state.weights))
    content = RecordDict(whole(reference, flat_record(state.weights), extra_vectors(state)))
    content["kept"] = kept_record(state.frame())
    content["frame"] = frame_record(state.frame())
    step = encode_update(
        state, state.frame(), values_for(state.frame(), 0, 2).double(), noise_std=1.0, codec=find_codec("float32")
    )
    content["steps"] = catch_up(Reference(version=2, base=1, digest=b""), [step.to_bytes()])["steps"]
    return state, content


def spoilt_record(content: RecordDict, rng: random.Random) -> RecordDict:
    """The message with one record gone, or with one false array or number."""
    copy = RecordDict({name: content[name] for name in content})
    name = rng.choice(sorted(copy))
    record = copy[name]
    if rng.random() < 0.1:
        del copy[name]
    elif isinstance(record, ConfigRecord):
        values: list[Any] = [0, -1, 2, 2**62, -(2**62), 1.5, float("nan"), "x", b"", b"\0" * 32, True, [1, 2]]
        copy[name] = ConfigRecord(dict(record) | {rng.choice(sorted(record)): rng.choice(values)})
    else:
        which = rng.choice(sorted(record))
        array = record[which]
        dtype, shape, stype, data = array.dtype, tuple(array.shape), array.stype, array.data
        match rng.randrange(4):
            case 0:
                data = damaged(data or b"\0", rng, b"\xff" * 99)
            case 1:
                dtype = rng.choice(DTYPES)
            case 2:
                shape = rng.choice([*SHAPES, (len(data),), (len(data) // 4,)])
            case 3:
                stype = rng.choice(["numpy.ndarray", "", "pickle"])
        copy[name] = ArrayRecord(dict(record) | {which: Array(dtype=dtype, shape=shape, stype=stype, data=data)})
    return copy


def take(state: ServerState, content: RecordDict, frame: Frame) -> None:
    """Everything that a client reads of a message; ``frame`` is the one that it derives itself."""
    reference = read_reference(content)
    if reference is not None:
        restart(state, read_weights(content), read_state(content), round=2, updates=1)
        read_kept(content, state.weights.numel())
        read_frame(content, frame)
        read_missed(content, Reference(version=reference.version, base=reference.version - 1, digest=b""))


def fuzz_records(count: int, seed: int) -> tuple[int, int]:
    rng = random.Random(seed)
    state, content = records()
    saved, frame = saved_of(state), state.frame()
    taken = refused = 0
    for _ in range(count):
        try:
            take(state, spoilt_record(content, rng), frame)
            taken += 1
        except REFUSED:
            refused += 1
        state.load_state_dict(saved)
    return taken, refused


def test_an_honest_message_is_taken():
    state, content = records()
    take(state, content, state.frame())


@pytest.mark.parametrize(
    ("fuzz", "count", "least_refused", "least_taken", "most_bytes"),
    [
        (fuzz_streams, 500, 350, 5, 8_000_000),
        (fuzz_records, 500, 150, 50, 8_000_000),
        pytest.param(fuzz_streams, 100_000, 70_000, 1_000, 40_000_000, marks=pytest.mark.slow),
        pytest.param(fuzz_records, 100_000, 30_000, 10_000, 8_000_000, marks=pytest.mark.slow),
    ],
)
def test_spoilt_streams_and_records(fuzz, count, least_refused, least_taken, most_bytes):
    taken, refused, peak = measured(fuzz, count, seed=1)
    assert taken + refused == count
    assert refused > least_refused
    assert taken > least_taken
    assert peak < most_bytes


def test_a_length_that_lies_is_refused_before_anything_is_allocated():
    one = SUBJECTS["float32"]()
    spoilt = bytearray(one.stream)
    struct.pack_into("<I", spoilt, LENGTH, 2**32 - 1)
    with pytest.raises(ValueError, match="steps: kind 1 with 4294967295 bytes of"):
        read_steps(bytes(spoilt))


def test_an_array_that_no_tensor_can_hold_is_refused_by_name():
    for dtype in ("x", "<U1", "|S4", "<c8"):
        content = RecordDict(
            {"weights": ArrayRecord({"flat": Array(dtype=dtype, shape=(1,), stype="raw", data=b"abcd" * 2)})}
        )
        with pytest.raises(ValueError, match="array"):
            read_weights(content)
    assert read_weights(RecordDict({"weights": ArrayRecord({"flat": raw_array(torch.ones(3).numpy())})})).sum() == 3
