"""Which runs keep a memory for error feedback, and what codec ``sign`` requires of a method."""

from fedlsg.method import Method
from fedlsg.payload import Codec
from fedlsg.training import check_memory


def keeps_memory(method: Method, codec: Codec) -> bool:
    """Whether clients keep what they left out: by recipe, or because the bias of one bit a value never averages out."""
    return method.compression.error_feedback or (codec == "sign" and method.mechanism.kind == "none")


def check_sign(method: Method) -> None:
    """Raise ValueError for a method whose values mean nothing by their sign alone."""
    if method.carrier.kind == "factors":
        raise ValueError(
            f"codec 'sign' keeps no magnitudes, and {method.name!r} sends factors, whose product would be longer than "
            "what it stands for: choose codec 'int8', 'bfloat16' or 'float32'"
        )
    if method.mask.ranking == "gradients" or method.prune.reads_data:
        raise ValueError("codec 'sign' keeps no magnitudes, and this method ranks by them: choose codec 'noise-floor'")
    if keeps_memory(method, "sign"):
        check_memory(method.name, method.mechanism, method.carrier, method.mask, method.prune)
