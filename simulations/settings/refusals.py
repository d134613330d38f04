"""Which methods some settings refuse, found without data: a comparison leaves them out instead of failing on each."""

from collections.abc import Mapping

import strategies
from simulations.settings.resolve import check_codecs, fill_codecs
from simulations.settings.settings import codec_settings, from_values

SHARE = 0.5
"""Any share of the noise below 1, which is what a client adds where the sum alone has enough."""


def refusal(given: Mapping[str, object]) -> str | None:
    """Why these typed settings do not go with their method; None if they do, as far as that is known without data.

    What else is wrong with them (a rank of 0) is not said here: the run itself reports it.
    """
    try:
        settings = fill_codecs(from_values(given))
        own = {name: value for name, value in settings.parameters.items() if name not in codec_settings()}
        method = strategies.recipe(settings.method, **own)
    except ValueError:
        return None
    try:
        if settings.trust in ("secure", "aggregate"):
            method = strategies.recipe(settings.method, **own, noise_share=SHARE)
        check_codecs(settings, method)
    except ValueError as error:
        return str(error)
    return None


def left_out(refused: Mapping[str, str]) -> list[str]:
    """A line for each reason: the methods that are left out for it. ``refused``: reasons by the name of a method."""
    groups: dict[str, list[str]] = {}
    for name, reason in refused.items():
        groups.setdefault(reason.replace(repr(name), "METHOD"), []).append(name)
    return [f"left out: {', '.join(names)}: {refused[names[0]]}" for names in groups.values()]


def all_refused(refused: Mapping[str, str]) -> ValueError:
    """The error where no method is left."""
    return ValueError("; ".join(left_out(refused)).replace("left out: ", "no method is left: ", 1))
