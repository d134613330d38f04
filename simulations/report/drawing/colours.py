"""Every colour of pages and figures, for a light and a dark ground, and the look of each method: a
colour and a marker.

A test computes their contrasts. Figures and their legends are drawn in the light colours: on dark
pages they are on white. A method keeps its look from figure to figure. Colour-blind readers can
distinguish the colours, and markers say the same again.
"""

from collections.abc import Sequence
from types import MappingProxyType

TEXT = MappingProxyType(
    {
        "ink": ("#1c1e21", "#e6e8ea"),
        "dim": ("#53585f", "#a8aeb6"),
        "link": ("#0a5aa8", "#7db7f5"),
        "alarm": ("#b00020", "#ff8a93"),
        "warn": ("#8a3b00", "#f0a868"),
        "good": ("#0b5c2e", "#6fcf97"),
    }
)
"""Colours of words, light and dark: 4.5 to 1 against each ground."""
GROUND = MappingProxyType(
    {
        "paper": ("#ffffff", "#15181c"),
        "panel": ("#f4f5f7", "#1f242a"),
        "alert": ("#fdf1f2", "#331a1e"),
        "fine": ("#eaf6ee", "#13301f"),
        "limit": ("#fdf3e4", "#33260f"),
    }
)
"""Colours that words are on."""
EDGES = MappingProxyType(
    {"rule": ("#dfe2e6", "#343a42"), "bar": ("#8d949c", "#79818a"), "shade": ("#d0d4d9", "#4a525b")}
)
"""Lines between rows, and edges."""

BLUE, ORANGE, RED, GREEN, SKY = "#0072b2", "#c07f00", "#e03840", "#117733", "#2a9bdc"
VIOLET, PLUM, NAVY = "#7010d0", "#581058", "#102888"
BLACK, GREY, LIGHT, ALARM = "#111111", "#8f8f8f", "#d5d8dc", "#b00020"
AXIS, GRID, WORDS, WHITE = "#5c6168", "#e3e5e8", "#222426", "#ffffff"
"""BLACK is not #000000, which matplotlib leaves out of an SVG where it fills. Everybody tells the
colours apart.
"""


def declarations(dark: bool) -> str:
    """The colours of pages as CSS variables."""
    named = {**TEXT, **GROUND, **EDGES}
    return ";".join(f"--{name}:{pair[dark]}" for name, pair in named.items())


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG 2.2 defines it, 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


Look = tuple[str, str]
"""Colour and marker."""

LOOKS = {
    "lsg": (RED, "o"),
    "lsg-lora": ("#882255", "D"),
    "lsg-probe": ("#e0651f", "D"),
    "rgp": (BLUE, "o"),
    "rgp-random": (SKY, "s"),
    "rgp-probe": ("#4b5fd0", "D"),
    "probe": ("#008f80", "*"),
    "dp-kfc": ("#661100", "X"),
    "lora": ("#b8609a", "s"),
    "ffa-lora": ("#aa4499", "v"),
    "fed-svd": ("#a2557f", "^"),
    "fed-sb": ("#7a3f9d", "p"),
    "bitfit": ("#8c8c2c", "P"),
    "rs": (ORANGE, "o"),
    "sparse-dpsgd": (GREEN, "s"),
    "dp-ssgd": ("#349584", "D"),
    "dp-powersgd": ("#332288", "^"),
    "gep": ("#1f6f8b", "h"),
    "dp-tl": ("#6b5b3e", "8"),
    "dpsgd": (BLACK, "o"),
    "linear-probe": ("#5a5a5a", "*"),
    "topk": ("#8c6d4f", "<"),
    "powersgd": ("#5a8dc8", "^"),
    "sgd": ("#949494", "X"),
}
"""Colour and marker of each method, in the order of every legend: fedlsg's own, the baselines,
those without noise.
"""
SPARE = tuple((colour, marker) for marker in "v<>P" for colour, _ in LOOKS.values())
MARKERS = "osD^X*phd8"
"""Markers of variants. SPARE gives none of them to a method."""


def canonical(method: str) -> tuple[int, str]:
    """The place of a method in every legend."""
    known = list(LOOKS)
    return (known.index(method) if method in LOOKS else len(known), method)


def looks(names: Sequence[tuple[str, str]]) -> dict[str, Look]:
    """Colour and marker by the name of a line, from (method, name): one colour a method, one marker
    a variant.
    """
    strangers = sorted({method for method, _ in names} - LOOKS.keys())
    seen: dict[str, int] = {}
    found = {}
    for method, name in sorted(set(names)):
        colour, own = LOOKS.get(method) or SPARE[strangers.index(method) % len(SPARE)]
        order = [own, *(marker for marker in MARKERS if marker != own)]
        variant = seen[method] = seen.get(method, -1) + 1
        found[name] = (colour, order[variant % len(order)])
    return found
