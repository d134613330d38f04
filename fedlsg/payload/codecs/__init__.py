"""Codec, the base class of all codecs, and the table of codecs: each file here with a ``CODEC``.

A new codec is one new file in this folder. Nothing outside its own file names it. ``CODEC`` is an
instance of a subclass of ``Codec``. Fields that it declares with a ``Setting`` are settings of its
own; a run gives them like any other setting:

    @dataclass(frozen=True, kw_only=True)
    class Coarse(Codec):
        coarse_step: Annotated[float, Setting("Distance of the grid's points.", above=0)] = 1.0
        def encode(self, values, counts, dither, round): ...
        def decode(self, body, counts, dither, round, *, max_norm): ...

    CODEC = Coarse(name="coarse", wire_id=100)

Codecs work on values that the mechanism has already made noisy. This is post-processing: epsilon
does not change.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Self, get_type_hints

from jaxtyping import Float
from torch import Tensor

from fedlsg.config import Declared, Setting, agreed, check_declared, declared, summary_of
from fedlsg.config.choices import did_you_mean
from fedlsg.method import Method
from fedlsg.payload.codecs.dither import Dither

DEFAULT_CODEC = "float32"
"""The codec if none is given."""


class PayloadError(ValueError):
    """A payload that is not what the receiver expects; the text says in which field."""


@dataclass(frozen=True, kw_only=True)
class Codec(ABC):
    """One codec with its settings.

    name: in settings.
    wire_id: value type in the header of a payload, 1 to 255, no other codec's.
    bytes_each: bytes of each value if the body has only values of one size, else None.
    exact: values arrive as they were, so that a sum of payloads keeps every share of noise.
    goes_down: whether server updates may be sent with it.
    grid_from_noise: the grid step follows from the noise on the values.
    known_noise: whether the noise in received values has a known deviation.
    needs_feedback: without noise, its error vanishes only if clients send later what they left out.
    """

    name: str
    wire_id: int
    bytes_each: int | None = None
    exact: bool = False
    goes_down: bool = True
    grid_from_noise: bool = False
    known_noise: bool = True
    needs_feedback: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.wire_id <= 255:
            raise ValueError(f"expected 1 <= wire_id={self.wire_id} <= 255 for codec {self.name!r}")
        check_declared(self)

    @property
    def settings(self) -> dict[str, Declared]:
        """The settings that are this codec's own, by name."""
        return dict(_own_settings(type(self)))

    def with_settings(self, given: Mapping[str, Any]) -> Self:
        """This codec with new values of its own settings, which are found in ``given`` by name.

        A setting that is missing or None stays. Raises ValueError for a value out of range.
        """
        values = {name: given[name] for name in self.settings if given.get(name) is not None}
        return replace(self, **values)

    @property
    def added_variance(self) -> float:
        """Variance of the codec's error over that of the noise, if the noise decides it; else 0."""
        return 0.0

    def received_noise(self, noise_std: float) -> float:
        """Deviation of noise and codec error together."""
        return noise_std * math.sqrt(1 + self.added_variance)

    def summary(self) -> dict[str, Any]:
        """Its own settings, for the summary of a run."""
        return {name: getattr(self, name) for name in self.settings}

    def check(self, method: Method) -> None:  # noqa: B027, most codecs suit every method
        """Raise ValueError, naming the reason, for a method whose values this codec does not
        suit.
        """

    def rounding_bound(self, dither: Dither | None, count: int, max_norm: float) -> float:
        """The most by which rounding can raise the norm of ``count`` values, up to ``max_norm``."""
        return 0.0

    @abstractmethod
    def encode(
        self,
        values: Float[Tensor, " kept"],
        counts: Sequence[int],
        dither: Dither | None,
        round: int,
    ) -> bytes | memoryview:
        """Bytes of finite float32 values, ``counts`` of them in each block: at most 16 a value and
        4 a block.

        They may be the memory of ``values`` itself: copy them before those change.
        Raises ValueError for values out of range.
        """

    @abstractmethod
    def decode(
        self,
        body: bytes | memoryview,
        counts: Sequence[int],
        dither: Dither | None,
        round: int,
        *,
        max_norm: float,
    ) -> Float[Tensor, " kept"]:
        """The float32 values that ``encode`` wrote, to within rounding.

        Guarantee: ``body`` may come from a hostile client. Bytes that no encoder makes raise
        ValueError, and what is allocated is in proportion to ``counts``. The caller checks that
        values are finite, and their norm.
        """


def check_length(body: bytes | memoryview, length: int) -> None:
    """Raise ValueError for a body of values of another length."""
    if len(body) != length:
        raise ValueError(f"payload length: expected {length} bytes of values, got {len(body)}")


@cache  # source does not change within a process
def _own_settings(codec: type[Codec]) -> Mapping[str, Declared]:
    """The fields of a codec with a ``Setting``."""
    common = []
    for name, hint in get_type_hints(codec, include_extras=True).items():
        if not any(isinstance(note, Setting) for note in getattr(hint, "__metadata__", ())):
            common.append(name)
    return declared(codec, without=common)


def find_codec(codec: Codec | str) -> Codec:
    """The codec of a name, with the defaults of its own settings; a codec is returned as it is.

    Raises ValueError for an unknown name, with the nearest known one.
    """
    if isinstance(codec, Codec):
        return codec
    if codec not in all_codecs():
        known = tuple(all_codecs())
        raise ValueError(
            f"expected codec in {known}, got {codec!r}{did_you_mean(str(codec), known)}"
        )
    return all_codecs()[codec]


def codec_settings() -> dict[str, Declared]:
    """Settings that codecs declare, by name. Raises ValueError if two codecs declare one name
    differently.
    """
    return agreed((f"codec {codec.name}", codec.settings) for codec in all_codecs().values())


@cache  # installed files do not change within a process
def all_codecs() -> Mapping[str, Codec]:
    """All codecs by name, in the order of their wire ids.

    Raises ValueError for two codecs of one name or one wire id: a receiver could not distinguish
    their payloads.
    """
    by_name: dict[str, Codec] = {}
    for codec in sorted((module.CODEC for module in _files()), key=lambda codec: codec.wire_id):
        for other in by_name.values():
            if codec.name == other.name or codec.wire_id == other.wire_id:
                raise ValueError(
                    f"codec {codec.name!r} with wire_id={codec.wire_id} cannot be distinguished "
                    f"from codec {other.name!r} with wire_id={other.wire_id}: give the new one "
                    "another name or wire_id"
                )
        by_name[codec.name] = codec
    return by_name


def summaries() -> dict[str, str]:
    """The first line of each codec's file, by name, in the order of ``all_codecs``."""
    lines = {module.CODEC.name: summary_of(module.__doc__) for module in _files()}
    return {name: lines[name] for name in all_codecs()}


def _files() -> list[Any]:
    """The modules of this folder with a ``CODEC``; all others are helpers."""
    modules = [import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__)]
    return [module for module in modules if hasattr(module, "CODEC")]


def keeps_memory(method: Method, codec: Codec) -> bool:
    """Whether clients keep the error of their payloads: by recipe, or as the codec needs it without
    noise.
    """
    return method.compression.error_feedback or (
        codec.needs_feedback and method.mechanism.of_kind.plain
    )


def check_fits(codec: Codec, method: Method) -> None:
    """Raise ValueError, with the codecs that fit, for a codec that does not suit the method."""
    reason = misfit(codec, method)
    if reason:
        others = [repr(other.name) for other in all_codecs().values() if not misfit(other, method)]
        raise ValueError(f"{reason}; codecs that fit: {', '.join(others)}")


def misfit(codec: Codec, method: Method) -> str:
    """Why a codec does not suit a method; empty if it does."""
    try:
        codec.check(method)
        if keeps_memory(method, codec):
            method.check_memory()
    except ValueError as error:
        return str(error)
    return ""
