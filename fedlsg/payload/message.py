"""Packing a payload, one flat (index, value) message, and unpacking it at a receiver that knows the
frame.

``layout`` has the bytes. ``unpack`` trusts none of them: every field is compared with the expected
one before anything is allocated, no message may be longer than the longest honest one, and the
receiver's own frame decides what is allocated.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedlsg.frame import Block
from fedlsg.payload.codecs import DEFAULT_CODEC, Codec, PayloadError, find_codec
from fedlsg.payload.codecs.dither import Dither
from fedlsg.payload.layout import (
    CHECKSUM_BYTES,
    CHOSEN,
    COMPACT,
    COMPACT_VERSION,
    DERIVED,
    EXPLICIT,
    HEADER,
    LENGTH,
    MAGIC,
    MODES,
    REPEATED,
    VERSION,
    IndexMode,
    Shape,
    check_header,
    checksum,
    counts_within,
    digest_of,
    encode_indices,
    indices_held,
    payload_bytes,
    read_chosen,
    seal,
    section_bound,
)

LARGEST_SIZE = 2**32
"""Most coordinates of a frame."""
AT_ONCE = 2**18
"""Values whose squares are added up in float32 at once."""


class Sealed(bytes):
    """A payload that this process packed, whose checksum need not be computed again.

    Bytes that arrive by a wire, a pickle or a file, and slices, are plain ``bytes``: their checksum
    is computed.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self),)


@dataclass(frozen=True, kw_only=True, eq=False)
class Expected:
    """What a receiver knows of a payload before it arrives.

    round: its number.
    codec: with its settings; a name means the codec with its defaults.
    index_mode: whether positions are derived, explicit, or chosen by the sender.
    size: d, coordinates before the mask.
    indices: the kept positions, ascending.
    digest: that of the frame.
    max_norm: bound on the L2 norm of the values.
    blocks: the frame's; None means one block of all coordinates.
    dither: the sender's; codecs that quantize need it.
    most: in index mode chosen, the most positions that the sender may choose; else None.
    """

    round: int
    codec: Codec | str
    index_mode: IndexMode
    size: int
    indices: Int[Tensor, " kept"]
    digest: bytes
    max_norm: float = float("inf")
    blocks: Sequence[Block] | None = None
    dither: Dither | None = None
    most: int | None = None

    @property
    def limit(self) -> int:
        """The most values of a payload."""
        return len(self.indices) if self.most is None else self.most


def pack(
    values: Float[Tensor, " kept"],
    indices: Int[Tensor, " kept"],
    *,
    size: int,
    round: int,
    digest: bytes,
    codec: Codec | str = DEFAULT_CODEC,
    index_mode: IndexMode = "derived",
    blocks: Sequence[Block] | None = None,
    dither: Dither | None = None,
    earlier: bytes | None = None,
) -> bytes:
    """Serialize k kept values and their k ascending positions in a flat vector of ``size``
    coordinates.

    digest: 32 bytes, that of the frame.
    blocks: the frame's; None means one block of all coordinates.
    dither: the client's; codecs that quantize need it.
    earlier: the client's last payload. Explicit indices that are equal to its own are not sent
        again; chosen ones always are.
    Guarantee: only values that are already noisy are rounded. This is post-processing: epsilon does
    not change.
    Raises ValueError for an unknown codec or index mode; PayloadError for values that are not
    finite in the codec's range, a wrong digest or round, or indices that do not fit.
    """
    codec = find_codec(codec)
    if index_mode not in MODES:
        raise ValueError(f"expected index mode in {tuple(MODES)}, got {index_mode!r}")
    check_positions(values, indices, size)
    fixed = codec.bytes_each is not None and index_mode == "derived"
    if len(digest) != 32 or not 0 <= round < 2 ** (63 if fixed else 32):
        raise PayloadError(
            f"expected a digest of 32 bytes and 0 <= {round=} < 2^63, got {len(digest)} bytes"
        )
    values = values.detach().cpu().float().contiguous()
    if fixed:
        header = HEADER.pack(
            MAGIC, VERSION, codec.wire_id, DERIVED, 0, round, size, len(values), digest
        )
        # the body may be the memory of values, which join copies
        body = _encode(values, [len(values)], codec, dither, round)
        return Sealed(b"".join((header, body, checksum(header, body))))
    shapes = _shapes(blocks, size)
    mode, section = _index_section(indices, shapes, index_mode, earlier)
    header = COMPACT.pack(MAGIC, COMPACT_VERSION, codec.wire_id, mode, 0, round, digest[:16])
    body = _encode(values, counts_within(indices, shapes), codec, dither, round)
    message = b"".join((header, section, body))
    return message + seal(message, size, size if mode == CHOSEN else len(values), digest, dither)


def _index_section(
    indices: Tensor, shapes: Sequence[Shape], index_mode: IndexMode, earlier: bytes | None
) -> tuple[int, bytes]:
    """The number of the index mode in the header, and the bytes of the values' positions."""
    if index_mode == "derived":
        return DERIVED, b""
    section = encode_indices(indices, shapes)
    if index_mode == "chosen":
        return CHOSEN, LENGTH.pack(len(section)) + section
    if earlier is not None and indices_held(earlier) == digest_of(section):
        return REPEATED, digest_of(section)
    return EXPLICIT, LENGTH.pack(len(section)) + section


def unpack(message: bytes, expected: Expected) -> Float[Tensor, " kept"]:
    """The k float32 values of a payload that is exactly what ``expected`` describes.

    In index mode chosen they are the values of all ``size`` coordinates, 0 at those that were not
    sent.
    Guarantee: ``message`` may be any bytes, also of a hostile client. The values are finite and
    their norm is within ``max_norm`` and the codec's rounding; ``expected`` alone decides what is
    allocated.
    Raises PayloadError naming the first field that differs: length, magic, version, codec, index
    mode, round, size, count, frame digest, checksum, indices, grid step, malformed or non-finite
    values, norm. (Version 2 has no field for size and count: they are under its checksum.)
    """
    codec = find_codec(expected.codec)
    if codec.bytes_each is None or expected.index_mode != "derived":
        values = _unpack_compact(message, expected, codec)
    else:
        values = _unpack_fixed(message, expected, codec)
    norm = norm_of(values)
    if not all_finite(values, norm):
        raise PayloadError("payload values: not finite")
    bound = expected.max_norm + codec.rounding_bound(
        expected.dither, expected.limit, expected.max_norm
    )
    if norm > bound:
        raise PayloadError(f"payload values: norm {norm:.4g} exceeds the bound {bound:.4g}")
    return values


def _unpack_fixed(message: bytes, expected: Expected, codec: Codec) -> Tensor:
    """The values of a message of version 1, without a look at finiteness and norm."""
    count = len(expected.indices)
    length = payload_bytes(count, codec)
    if len(message) != length:
        raise PayloadError(f"payload length: expected {length} bytes, got {len(message)}")
    wanted = (
        MAGIC,
        VERSION,
        codec.wire_id,
        DERIVED,
        0,
        expected.round,
        expected.size,
        count,
        expected.digest,
    )
    check_header(HEADER.unpack_from(message), wanted)
    bytes_ = memoryview(message)  # a slice of it is no copy
    if (
        type(message) is not Sealed
        and checksum(bytes_[:-CHECKSUM_BYTES]) != message[-CHECKSUM_BYTES:]
    ):
        raise PayloadError("payload checksum: the bytes were damaged")
    return _decode(bytes_[HEADER.size : -CHECKSUM_BYTES], [count], codec, expected)


def _unpack_compact(message: bytes, expected: Expected, codec: Codec) -> Tensor:
    """The values of a message of version 2, without a look at finiteness and norm."""
    shapes = _shapes(expected.blocks, expected.size)
    if expected.index_mode == "chosen":
        body = _open(message, expected, codec, section_bound(shapes, expected.limit))[1]
        return _unpack_chosen(body, expected, codec, shapes)
    section = encode_indices(expected.indices, shapes) if expected.index_mode == "explicit" else b""
    mode, body = _open(message, expected, codec, len(section))
    positions = {
        DERIVED: b"",
        EXPLICIT: LENGTH.pack(len(section)) + section,
        REPEATED: digest_of(section),
    }[mode]
    if not body.startswith(positions):
        raise PayloadError("payload indices: they differ from the mask of this round")
    counts = counts_within(expected.indices, shapes)
    return _decode(body[len(positions) :], counts, codec, expected)


def _open(message: bytes, expected: Expected, codec: Codec, section: int) -> tuple[int, bytes]:
    """Index mode and body of a message of version 2.

    Raises PayloadError unless its length, header and checksum are right. ``section``: the most
    bytes of indices.
    """
    least, most = COMPACT.size + CHECKSUM_BYTES, longest(expected, section)
    if not least <= len(message) <= most:
        raise PayloadError(f"payload length: expected {least} to {most} bytes, got {len(message)}")
    fields = COMPACT.unpack_from(message)
    modes = MODES[expected.index_mode]
    mode = fields[3] if fields[3] in modes else modes[0]
    wanted = (MAGIC, COMPACT_VERSION, codec.wire_id, mode, 0, expected.round, expected.digest[:16])
    check_header(fields, wanted)
    count = expected.size if mode == CHOSEN else len(expected.indices)
    due = seal(message[:-CHECKSUM_BYTES], expected.size, count, expected.digest, expected.dither)
    if due != message[-CHECKSUM_BYTES:]:
        raise PayloadError(
            "payload checksum: the bytes were damaged, or made by another client or in another "
            "frame"
        )
    return mode, message[COMPACT.size : -CHECKSUM_BYTES]


def _unpack_chosen(
    body: bytes, expected: Expected, codec: Codec, shapes: Sequence[Shape]
) -> Tensor:
    """All values of a body in index mode chosen: 0 at positions that were not sent."""
    try:
        positions, rest = read_chosen(body, shapes, expected.limit)
    except ValueError as error:
        raise PayloadError(str(error)) from None
    values = _decode(rest, counts_within(positions, shapes), codec, expected)
    return torch.zeros(expected.size).index_copy_(0, positions, values)


def _encode(
    values: Tensor, counts: Sequence[int], codec: Codec, dither: Dither | None, round: int
) -> bytes | memoryview:
    """The codec's bytes. Raises PayloadError for values that are not finite in its range."""
    if not all_finite(values, norm_of(values)):
        raise PayloadError(f"values are not finite as {codec.name}")
    try:
        return codec.encode(values, counts, dither, round)
    except ValueError as error:
        raise PayloadError(str(error)) from None


def _decode(
    body: bytes | memoryview, counts: Sequence[int], codec: Codec, expected: Expected
) -> Tensor:
    """The codec's values. Raises PayloadError for bytes that no encoder makes."""
    try:
        values = codec.decode(
            body, counts, expected.dither, expected.round, max_norm=expected.max_norm
        )
    except ValueError as error:
        raise PayloadError(str(error)) from None
    if values.shape != (sum(counts),):
        raise PayloadError(
            f"payload values: expected {sum(counts)}, codec {codec.name!r} gave "
            f"{tuple(values.shape)}"
        )
    return values


def longest(expected: Expected, section: int) -> int:
    """Bytes that no honest payload exceeds: 16 a value, 4 a block, header, indices, and 32 to
    spare.
    """
    blocks = 1 if expected.blocks is None else len(expected.blocks)
    return COMPACT.size + CHECKSUM_BYTES + 4 + section + 4 * blocks + 32 + 16 * expected.limit


def _shapes(blocks: Sequence[Block] | None, size: int) -> list[Shape]:
    """The shapes of the blocks; without blocks, one of all coordinates."""
    return [(size,)] if blocks is None else [block.shape for block in blocks]


def check_positions(values: Tensor, indices: Tensor, size: int) -> None:
    """Raise PayloadError unless there is one value an index, and indices ascend within ``size``
    coordinates.
    """
    global _last_checked
    if values.shape != indices.shape or values.ndim != 1:
        raise PayloadError(
            f"expected one value an index, got {tuple(values.shape)} and {tuple(indices.shape)}"
        )
    reference, version, last_size = _last_checked
    if reference() is indices and version == indices._version and last_size == size:
        return
    if size > LARGEST_SIZE or (
        len(indices) and not 0 <= int(indices[0]) <= int(indices[-1]) < size
    ):
        raise PayloadError(f"indices do not fit into {size} coordinates")
    if not bool((indices[1:] > indices[:-1]).all()):
        raise PayloadError("indices must ascend without repeats")
    _last_checked = weakref.ref(indices), indices._version, size


_last_checked: tuple[Callable[[], Tensor | None], int, int] = (lambda: None, 0, 0)
"""The last positions that were accepted, their version, and ``size``: all clients of a round share
one frame.
"""


def norm_of(values: Float[Tensor, " kept"]) -> float:
    """L2 norm, to float32's precision for any number of values.

    It is not finite if a value is not, or if the norm overflows. It is computed in pieces: one
    float32 sum over very many values would stop growing, and a float64 one takes ten times as long.
    """
    if len(values) <= AT_ONCE:
        return float(torch.linalg.vector_norm(values))
    norms = [torch.linalg.vector_norm(piece) for piece in values.split(AT_ONCE)]
    return float(torch.stack(norms).double().norm())


def all_finite(values: Float[Tensor, " kept"], norm: float) -> bool:
    """Whether every value is finite; single values are read only if their ``norm`` is not."""
    return math.isfinite(norm) or bool(values.isfinite().all())
