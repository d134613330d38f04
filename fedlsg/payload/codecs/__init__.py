"""The codecs: each file of this folder with a module-level ``CODEC`` is one.

See ``Codec`` for what a codec declares. Nothing outside its own file names a codec.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from fedlsg.choices import did_you_mean
from fedlsg.payload.values.codec import Codec
from fedlsg.setting import Declared, same

DEFAULT_CODEC = "float32"
"""The codec if none is given."""


def find_codec(codec: Codec | str) -> Codec:
    """The codec of a name, with the defaults of its own settings; a codec is returned as it is.

    Raises ValueError for an unknown name, with the nearest known one.
    """
    if isinstance(codec, Codec):
        return codec
    if codec not in all_codecs():
        known = tuple(all_codecs())
        raise ValueError(f"expected codec in {known}, got {codec!r}{did_you_mean(codec, known)}")
    return all_codecs()[codec]


def codec_settings() -> dict[str, Declared]:
    """Settings that codecs declare, by name. Raises ValueError if two codecs declare one name differently."""
    found: dict[str, tuple[str, Declared]] = {}
    for codec in all_codecs().values():
        for name, one in codec.settings.items():
            where, other = found.get(name, (codec.name, one))
            found[name] = where, same(other, one, (f"codec {where}", f"codec {codec.name}"))
    return {name: one for name, (_, one) in found.items()}


@cache
def all_codecs() -> Mapping[str, Codec]:
    """All codecs by name, in the order of their wire ids. A file without ``CODEC`` is a helper, and no codec.

    Raises ValueError for two codecs of one name or one wire id: a receiver could not distinguish their payloads.
    """
    found = [module.CODEC for module in _files()]
    by_name, by_id = dict[str, Codec](), dict[int, Codec]()
    for codec in sorted(found, key=lambda codec: codec.wire_id):
        for other in (by_name.setdefault(codec.name, codec), by_id.setdefault(codec.wire_id, codec)):
            if other is not codec:
                raise ValueError(
                    f"codec {codec.name!r} with wire_id={codec.wire_id} cannot be distinguished from codec "
                    f"{other.name!r} with wire_id={other.wire_id}: give the new one another name or wire_id"
                )
    return by_name


def summaries() -> dict[str, str]:
    """The first line of each codec's file, by name, in the order of ``all_codecs``."""
    lines = {module.CODEC.name: (module.__doc__ or "").partition("\n")[0] for module in _files()}
    return {name: lines[name] for name in all_codecs()}


def _files() -> list[Any]:
    modules = [import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__)]
    return [module for module in modules if hasattr(module, "CODEC")]
