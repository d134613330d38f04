"""Contrasts of every colour, from the style sheet of a page: words 4.5 to 1, lines and marks 3 to 1 (WCAG 2.2)."""

import re

import pytest

from simulations.report.page.colours import EDGES, GROUND, IN_FIGURES, LINES, TEXT, contrast, variable
from simulations.report.page.style import CSS

WORDS, MARKS = 4.5, 3.0


def variables(dark: bool) -> dict[str, str]:
    """What the style sheet says."""
    light, night = (re.search(pattern, CSS) for pattern in (r":root \{([^}]*)\}", r"dark\) \{ :root \{([^}]*)\}"))
    assert light is not None
    assert night is not None
    found = dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", (night if dark else light)[1]))
    assert len(found) > 30
    return found


def too_faint(colours: dict[str, str]) -> list[str]:
    """Pairs of a page that cannot be read or seen."""
    words = [(one, ground, WORDS) for one in TEXT for ground in GROUND]
    marks = [(f"c{light[1:]}", "paper", MARKS) for light in LINES]
    return [
        f"{one} on {ground}: {contrast(colours[one], colours[ground]):.2f}"
        for one, ground, least in (*words, *marks)
        if contrast(colours[one], colours[ground]) < least
    ]


@pytest.mark.parametrize("dark", [False, True])
def test_everything_can_be_read(dark):
    assert too_faint(variables(dark)) == []


@pytest.mark.parametrize(("name", "colour"), [("dim", "#9aa0a6"), ("cd55e00", "#fff3e0")])
def test_a_faint_colour_is_found(name, colour):
    """Negative control."""
    assert {pair.split()[0] for pair in too_faint(variables(False) | {name: colour})} == {name}


def test_contrasts_by_hand():
    """The ends of the scale, and the grey that WCAG's readers know as just enough."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#777777") == pytest.approx(1)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


def test_every_variable_that_is_used_is_declared():
    used = set(re.findall(r"var\(--([\w-]+)[,)]", CSS)) | {variable(colour)[6:-1] for colour in IN_FIGURES}
    for dark in (False, True):
        assert used - {"words"} <= variables(dark).keys()
    assert {*TEXT, *GROUND, *EDGES} <= used


def test_colours_of_no_figure_stay_as_they_are():
    assert variable("#fefefe") == "#fefefe"
    assert variable("#D55E00") == "var(--cd55e00)"
