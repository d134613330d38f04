"""Which codecs suit a method, and which runs keep the memory of error feedback (see ``Compression``)."""

from fedlsg.method import Method
from fedlsg.payload.codecs import Codec, all_codecs
from fedlsg.training import check_memory


def keeps_memory(method: Method, codec: Codec) -> bool:
    """Whether clients remember what they left out: by recipe, or because the codec needs it without noise."""
    return method.compression.error_feedback or (codec.needs_feedback and method.mechanism.kind == "none")


def check_fits(codec: Codec, method: Method) -> None:
    """Raise ValueError for a codec that does not suit the method's values; the message lists the codecs that do."""
    reason = misfit(codec, method)
    if reason:
        others = [repr(other.name) for other in all_codecs().values() if not misfit(other, method)]
        raise ValueError(f"{reason}; codecs that fit: {', '.join(others)}")


def misfit(codec: Codec, method: Method) -> str:
    """Why a codec does not suit a method; empty if it does."""
    try:
        codec.check(method)
        if keeps_memory(method, codec):
            check_memory(method.name, method.mechanism, method.carrier, method.mask, method.prune)
    except ValueError as error:
        return str(error)
    return ""
