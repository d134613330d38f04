"""Which tables and figures a comparison shows: the axis, and the link of transfer times."""

from dataclasses import dataclass

from fedlsg.choices import choose
from simulations.rundir.links import Link, parse_link

AXES = ("epsilon", "bytes")


@dataclass(frozen=True, kw_only=True)
class View:
    """``axis`` bytes adds accuracy against total bytes at equal epsilon; ``link`` adds seconds of transfer on it."""

    axis: str = "epsilon"
    link: Link | None = None

    @property
    def bytes(self) -> bool:
        return self.axis == "bytes"


PLAIN = View()


def make_view(axis: str | None, link: str | None) -> View:
    """From the options ``--axis`` and ``--link``; raises ValueError naming the option."""
    if axis is not None:
        choose("--axis", axis, dict.fromkeys(AXES))
    return View(axis=axis or "epsilon", link=None if link is None else parse_link(link))
