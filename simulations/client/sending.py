"""The payload of a client's values, stored before it is sent if it has noise; and the memory of error feedback."""

from collections.abc import Callable

from torch import Tensor

from fedlsg.carriers.powersgd import decode, encode
from fedlsg.frame import Frame
from fedlsg.payload import Dither, Expected, keeps_memory, pack, unpack
from fedlsg.training import largest
from simulations.plan.plan import Base
from simulations.rundir.feedback_box import FeedbackBox
from simulations.rundir.outbox import Outbox
from simulations.rundir.rundir import RunDir
from strategies.federation.wire import Announcement


def open_box(base: Base, run: RunDir, partition: int) -> Outbox | FeedbackBox:
    """The store of the client's last payload; with its memory, if the run's method keeps one."""
    if keeps_memory(base.method, base.codec):
        return FeedbackBox(run.own(partition), partition)
    return Outbox(run.outbox(partition))


def send(
    values: Tensor,
    frame: Frame,
    base: Base,
    announced: Announcement,
    dither: Dither,
    box: Outbox | FeedbackBox,
    question: str,
) -> bytes:
    """The payload of a round's values; with noise or memory it is stored first, under its question."""
    if isinstance(box, Outbox):
        payload = pack_values(encode(values, frame), frame, base, announced, dither, box.last)
        if base.method.mechanism.adds_noise or base.index_mode == "explicit":  # without noise, resending is free
            box.store(question, payload)
        return payload
    if base.method.mechanism.kind != "none":  # the plan refused it; checked again at the point of use
        raise ValueError(f"error feedback under mechanism {base.method.mechanism.kind!r} would leak: not sent")
    due = values.detach().cpu().double() + box.memory(announced.round, frame.kept)
    payload = pack_values(encode(due, frame), frame, base, announced, dither, box.last)
    received = decode(unpack(payload, expected(frame, base, announced, dither)), frame)
    return box.store(question, payload, due - received.double(), round=announced.round)


def pack_values(
    values: Tensor, frame: Frame, base: Base, announced: Announcement, dither: Dither, last: Callable[[], bytes | None]
) -> bytes:
    """A payload of the values; with compression, of the largest ones only."""
    where = frame.wire
    positions = where.indices
    most = base.method.compression.most(where.size)
    if most is not None:
        positions = largest(values, most)
        values = values[positions]
    return pack(
        values,
        positions,
        size=where.size,
        round=announced.round,
        digest=announced.frame_digest,
        codec=base.codec,
        index_mode=base.index_mode,
        blocks=where.blocks,
        dither=dither,
        earlier=last() if base.index_mode == "explicit" else None,
    )


def expected(frame: Frame, base: Base, announced: Announcement, dither: Dither) -> Expected:
    """What the server expects of this client, except for the bound on the norm."""
    return Expected(
        round=announced.round,
        codec=base.codec,
        index_mode=base.index_mode,
        size=frame.wire.size,
        indices=frame.wire.indices,
        digest=announced.frame_digest,
        blocks=frame.wire.blocks,
        dither=dither,
        most=base.method.compression.most(frame.wire.size),
    )
