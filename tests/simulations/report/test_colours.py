"""Contrasts of every colour, from the style sheet of a page: words 4.5 to 1, lines and marks 3 to 1
(WCAG 2.2).
"""

import itertools
import json
import re

import numpy as np
import pytest

from fedlsg.simulations.inspection.partition_view import CLASS_COLOURS
from fedlsg.simulations.report.drawing import colours
from fedlsg.simulations.report.drawing.colours import EDGES, GROUND, LOOKS, TEXT, WHITE, contrast
from fedlsg.simulations.report.pages.style import CSS
from fedlsg.simulations.report.pages.template import ASSETS

FOR_WORDS, FOR_MARKS = 4.5, 3.0
MARKS = {colour for colour, _ in LOOKS.values()} | {
    colours.SKY,
    colours.GREY,
    colours.ALARM,
    colours.BLUE,
}
WORDS = {colours.AXIS, colours.WORDS, TEXT["ink"][0]}


def variables(dark: bool) -> dict[str, str]:
    """What the style sheet says."""
    light, night = (
        re.search(pattern, CSS)
        for pattern in (r":root \{([^}]*)\}", r"dark\) \{ :root \{([^}]*)\}")
    )
    assert light is not None
    assert night is not None
    found = dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", (night if dark else light)[1]))
    assert len(found) == len(TEXT) + len(GROUND) + len(EDGES)
    return found


def too_faint(known: dict[str, str], marks: set[str] = MARKS) -> list[str]:
    """Pairs of a page that cannot be read or seen: its words, and what figures and legends have on
    white.
    """
    pairs = [(one, known[one], known[ground], FOR_WORDS) for one in TEXT for ground in GROUND]
    pairs += [(colour, colour, WHITE, FOR_WORDS) for colour in WORDS]
    pairs += [(colour, colour, WHITE, FOR_MARKS) for colour in marks]
    return [name for name, colour, ground, least in pairs if contrast(colour, ground) < least]


@pytest.mark.parametrize("dark", [False, True])
def test_everything_can_be_read(dark):
    assert too_faint(variables(dark)) == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_faint_colour_is_found(dark):
    """Negative control."""
    assert set(too_faint(variables(dark) | {"dim": "#7f7f7f"}, {"#fff3e0"})) == {"dim", "#fff3e0"}


SIGHTS = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.3039),
    ),
}
"""Linear RGB as people see it (Machado et al. 2009, severity 1)."""
XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
DISTINCT = 10.0
"""Distance in CIELAB (1976) of two colours that nobody takes for one another, next to each
other.
"""


def seen(colour: str, sight: str) -> np.ndarray:
    """A colour in CIELAB, D65."""
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(
        np.array(XYZ) @ np.clip(np.array(SIGHTS[sight]) @ linear, 1e-3, 1) / (0.95047, 1, 1.08883)
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def by_night(colour: str) -> str:
    """What page.js makes of a colour on a dark ground."""
    script = (ASSETS / "page.js").read_text()
    known = json.loads(re.search(r"const NIGHT = (\{[^}]*\});", script)[1])  # type: ignore[index]
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    while (
        contrast("#" + "".join(f"{min(255, round(part)):02x}" for part in parts), "#15181c") < 4.5
    ):
        parts = [min(255, part + (255 - part) * 0.12 + 1) for part in parts]  # type: ignore[misc]
    return known.get(colour, "#" + "".join(f"{round(part):02x}" for part in parts))


def alike(palette: set[str]) -> list[tuple[str, str, str]]:
    """Pairs that somebody takes for one another, by sight."""
    return [
        (sight, one, other)
        for sight in SIGHTS
        for one, other in itertools.combinations(sorted(palette), 2)
        if np.linalg.norm(seen(one, sight) - seen(other, sight)) < DISTINCT
    ]


def test_colour_blind_readers_tell_series_apart():
    """By day and by night; the planted pair is the orange and the vermilion that these pages once
    had.
    """
    assert alike(set(CLASS_COLOURS)) == []
    assert alike({by_night(colour) for colour in CLASS_COLOURS}) == []
    assert len({by_night(colour) for colour in CLASS_COLOURS}) == len(CLASS_COLOURS)
    assert alike({colours.ORANGE, "#d55e00"}) == [
        ("protanopia", "#c07f00", "#d55e00"),
        ("deuteranopia", "#c07f00", "#d55e00"),
    ]
