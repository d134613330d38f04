"""Contrasts of every colour, from the style sheet of a page: words 4.5 to 1, lines and marks 3 to 1 (WCAG 2.2)."""

import re

import pytest

from simulations.report import colours
from simulations.report.colours import EDGES, GROUND, TEXT, WHITE, contrast
from simulations.report.looks import LOOKS
from simulations.report.style import CSS

FOR_WORDS, FOR_MARKS = 4.5, 3.0
MARKS = {colour for colour, _ in LOOKS.values()} | {colours.SKY, colours.GREY, colours.ALARM, colours.BLUE}
WORDS = {colours.AXIS, colours.WORDS, TEXT["ink"][0]}


def variables(dark: bool) -> dict[str, str]:
    """What the style sheet says."""
    light, night = (re.search(pattern, CSS) for pattern in (r":root \{([^}]*)\}", r"dark\) \{ :root \{([^}]*)\}"))
    assert light is not None
    assert night is not None
    found = dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", (night if dark else light)[1]))
    assert len(found) == len(TEXT) + len(GROUND) + len(EDGES)
    return found


def too_faint(known: dict[str, str], marks: set[str] = MARKS) -> list[str]:
    """Pairs of a page that cannot be read or seen: its words, and what figures and legends have on white."""
    pairs = [(one, known[one], known[ground], FOR_WORDS) for one in TEXT for ground in GROUND]
    pairs += [(colour, colour, WHITE, FOR_WORDS) for colour in WORDS]
    pairs += [(colour, colour, WHITE, FOR_MARKS) for colour in marks]
    return [name for name, colour, ground, least in pairs if contrast(colour, ground) < least]


@pytest.mark.parametrize("dark", [False, True])
def test_everything_can_be_read(dark):
    assert too_faint(variables(dark)) == []
