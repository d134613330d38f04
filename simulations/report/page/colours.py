"""Every colour of pages and figures, for a light and a dark ground. A test computes their contrasts.

A figure is drawn in the light colours. On a page each of them is a CSS variable, which has another value in the dark.
"""

from collections.abc import Mapping
from types import MappingProxyType

TEXT: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ink": ("#1c1e21", "#e6e8ea"),
        "dim": ("#53585f", "#a8aeb6"),
        "link": ("#0a5aa8", "#7db7f5"),
        "alarm": ("#b00020", "#ff8a93"),
        "warn": ("#8a3b00", "#f0a868"),
    }
)
"""Colours of words, light and dark: 4.5 to 1 against each ground."""
GROUND: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "paper": ("#ffffff", "#15181c"),
        "panel": ("#f4f5f7", "#1f242a"),
        "alert": ("#fdf1f2", "#331a1e"),
    }
)
"""Colours that words are on."""
EDGES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"rule": ("#dfe2e6", "#343a42"), "bar": ("#8d949c", "#79818a"), "shade": ("#d0d4d9", "#4a525b")}
)
"""Lines between rows, and edges."""

BLUE, ORANGE, RED, GREEN, SKY = "#0072b2", "#c07f00", "#d55e00", "#117733", "#2a9bdc"
BLACK, GREY, LIGHT, ALARM = "#111111", "#8f8f8f", "#d5d8dc", "#b00020"
AXIS, GRID, WORDS, WHITE = "#5c6168", "#e3e5e8", "#222426", "#ffffff"
"""BLACK is not #000000: matplotlib leaves a fill of that colour out of an SVG, and in the dark it would stay black."""

LINES: Mapping[str, str] = MappingProxyType(
    {
        BLUE: "#4ba3e3", ORANGE: "#e6a520", RED: "#ff7f2a", GREEN: "#4fbf6f", SKY: "#8fd0f7", BLACK: "#f2f2f2",
        GREY: "#9a9a9a", ALARM: "#ff8a93",
        "#882255": "#e07aad", "#b8609a": "#e5a3cb", "#349584": "#4fc4b0", "#332288": "#9a8cf0",
        "#5a5a5a": "#c4c4c4", "#949494": "#858585", "#8c8c2c": "#bdbd4f", "#aa4499": "#d67cc8", "#8c6d4f": "#c2a17f",
        "#5a8dc8": "#8db4e2", "#008f80": "#2fd0bd", "#e0651f": "#ffb184", "#4b5fd0": "#93a3ff", "#661100": "#d98c7a",
        "#a2557f": "#d791b4", "#7a3f9d": "#bb8ede", "#1f6f8b": "#62b6d4", "#6b5b3e": "#b9a67e",
    }
)  # fmt: skip
"""Colours of lines and marks by their light one: 3 to 1 against paper, light and dark."""
QUIET: Mapping[str, str] = MappingProxyType({LIGHT: "#3d444c", GRID: "#2b3037"})
"""Grids and backs of bars, which no reader needs to see well."""
IN_FIGURES: Mapping[str, str] = MappingProxyType(
    {**LINES, **QUIET, AXIS: "#9aa1a9", WORDS: TEXT["ink"][1], WHITE: GROUND["paper"][1]}
)
"""Every colour that a figure may have, and what it is in the dark. Any other one stays as it is."""


def variable(colour: str) -> str:
    """The CSS variable of a colour of figures; the colour itself if it has none."""
    return f"var(--c{colour[1:].lower()})" if colour.lower() in IN_FIGURES else colour


def declarations(dark: bool) -> str:
    """All colours as CSS variables."""
    named = {**TEXT, **GROUND, **EDGES}
    own = [f"--{name}:{pair[dark]}" for name, pair in named.items()]
    return ";".join([*own, *(f"--c{light[1:]}:{other if dark else light}" for light, other in IN_FIGURES.items())])


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG 2.2 defines it, 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
