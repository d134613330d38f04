"""Codecs of a run, up and down: what is filled in where none is given, which combinations there are, what they add."""

from dataclasses import replace
from typing import Any

from fedlsg.method import Method
from fedlsg.payload import DEFAULT_CODEC, Codec, all_codecs, check_fits, find_codec, keeps_memory
from simulations.settings.settings import Settings


def uplink_codec(s: Settings) -> Codec:
    """How a client's values are sent."""
    return find_codec(s.codec).with_settings(s.parameters)


def downlink_codec(s: Settings) -> Codec:
    """How updates go down, where they do."""
    return find_codec(s.downlink_codec or DEFAULT_CODEC).with_settings(s.parameters)


def fill_codecs(s: Settings) -> Settings:
    """The codec of updates that go down, as fine as that of what comes up; and the codecs' own settings.

    Raises ValueError for an unknown codec, or a setting of a codec out of range.
    """
    up = find_codec(s.codec)
    if s.downlink != "full" and s.downlink_codec is None:
        s = replace(s, downlink_codec=up.name if up.grid_from_noise and up.goes_down else DEFAULT_CODEC)
    own = _own(uplink_codec(s)) | ({} if s.downlink_codec is None else _own(downlink_codec(s)))
    return replace(s, parameters={**s.parameters, **own})


def check_codecs(s: Settings, method: Method) -> None:
    """Raise ValueError for codecs that the method's values cannot have, or a setting of a codec that is not used."""
    _check_downlink(s, method)
    for codec in all_codecs().values():
        for name in codec.settings if codec.name not in (s.codec, s.downlink_codec) else ():
            if (value := s.parameters.get(name)) is not None:
                raise ValueError(f"{name}={value} is a setting of codec {codec.name!r}, not {s.codec!r}")
    if method.compression.chooses and (s.indices != "derived" or s.trust == "aggregate"):
        raise ValueError(
            f"{method.name!r} sends the positions that each client chose: leave out indices={s.indices!r}, and take "
            "trust=client, for a secure sum adds position by position"
        )
    check_fits(uplink_codec(s), method)


def check_exact(s: Settings) -> None:
    """Raise ValueError for a codec that rounds where only the sum of all payloads has enough noise."""
    if s.trust == "aggregate" and not find_codec(s.codec).exact:
        exact = " or ".join(f"codec={codec.name!r}" for codec in all_codecs().values() if codec.exact)
        raise ValueError(
            f"trust='aggregate' needs {exact}, got {s.codec!r}: each payload is rounded before the sum, and rounding a "
            "large value takes off the client's share of the noise"
        )


def codec_summary(s: Settings, method: Method) -> dict[str, Any]:
    """How values are sent, with the settings of the codec, and what it adds to the noise."""
    codec = uplink_codec(s)
    feedback = {"error_feedback": True} if keeps_memory(method, codec) else {}
    indices = "chosen" if method.compression.chooses else s.indices
    return {"name": codec.name, "indices": indices, **feedback, **codec.summary()}


def _check_downlink(s: Settings, method: Method) -> None:
    if s.downlink_codec is None:
        return
    if s.downlink == "full":
        raise ValueError(
            f"downlink_codec={s.downlink_codec!r} is how updates go down, and downlink='full' sends weights: give "
            "downlink=sparse, too"
        )
    down, codecs = find_codec(s.downlink_codec), all_codecs().values()
    if not down.goes_down:
        known = tuple(codec.name for codec in codecs if codec.goes_down)
        raise ValueError(f"expected downlink_codec in {known}, got {down.name!r}")
    if not down.grid_from_noise:
        return
    others = ", ".join(codec.name for codec in codecs if codec.goes_down and not codec.grid_from_noise)
    if not method.mechanism.adds_noise or method.carrier.kind == "factors":
        why = "adds none" if not method.mechanism.adds_noise else "does not reach every coordinate of its factors"
        raise ValueError(
            f"downlink_codec {down.name!r} takes its grid from the noise, and that of {method.name!r} {why}: choose "
            f"downlink_codec among {others}"
        )
    if not find_codec(s.codec).known_noise:
        raise ValueError(
            f"downlink_codec {down.name!r} takes its grid from the noise in the sum, and codec {s.codec!r} leaves one "
            f"of no known deviation there: choose downlink_codec among {others}"
        )


def _own(codec: Codec) -> dict[str, Any]:
    return {name: getattr(codec, name) for name in codec.settings}
