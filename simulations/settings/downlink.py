"""Settings of the downlink: which combinations there are, and its codec where none is given."""

from dataclasses import replace

from fedlsg.method import Method
from fedlsg.payload import DEFAULT_STEP
from fedlsg.state import Coding
from simulations.settings.settings import Settings


def fill_downlink(s: Settings) -> Settings:
    """The codec of what goes down, where none was given: as fine as what comes up."""
    if s.downlink == "full" or s.downlink_codec is not None:
        return s
    return replace(s, downlink_codec="noise-floor" if s.codec == "noise-floor" else "float32")


def check_downlink(s: Settings, method: Method) -> None:
    """Raise ValueError for a downlink that the method's sums cannot have."""
    if s.downlink == "full" and s.downlink_codec is not None:
        raise ValueError(
            f"downlink_codec={s.downlink_codec!r} is how updates go down, and downlink='full' sends weights: give "
            "downlink=sparse, too"
        )
    if s.downlink_codec != "noise-floor":
        return
    if not method.mechanism.adds_noise or method.carrier.kind == "factors":
        why = "adds none" if not method.mechanism.adds_noise else "does not reach every coordinate of its factors"
        raise ValueError(
            f"downlink_codec 'noise-floor' takes its grid from the noise, and that of {method.name!r} {why}: choose "
            "downlink_codec=float32 or int8"
        )
    if s.codec == "sign":
        raise ValueError(
            "downlink_codec 'noise-floor' takes its grid from the noise in the sum, and codec 'sign' leaves one of no "
            "known deviation there: choose downlink_codec=float32 or int8"
        )


def coding(s: Settings) -> Coding:
    """How updates go down."""
    return Coding(codec=s.downlink_codec or "float32", floor_step=s.noise_floor_step or DEFAULT_STEP)
