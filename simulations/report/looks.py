"""The look of each method: a colour and a marker, which it keeps from figure to figure.

Colour-blind readers can distinguish the colours, and markers say the same again.
"""

from collections.abc import Mapping, Sequence

from simulations.report.colours import BLACK, BLUE, GREEN, ORANGE, RED, SKY

Look = tuple[str, str]
"""Colour and marker."""

LOOKS: Mapping[str, Look] = {
    "lsg": (RED, "o"), "lsg-lora": ("#882255", "D"), "lsg-probe": ("#e0651f", "D"), "rgp": (BLUE, "o"),
    "rgp-random": (SKY, "s"), "rgp-probe": ("#4b5fd0", "D"), "probe": ("#008f80", "*"), "dp-kfc": ("#661100", "X"),
    "lora": ("#b8609a", "s"), "ffa-lora": ("#aa4499", "v"), "fed-svd": ("#a2557f", "^"),
    "fed-sb": ("#7a3f9d", "p"), "bitfit": ("#8c8c2c", "P"), "rs": (ORANGE, "o"),
    "sparse-dpsgd": (GREEN, "s"), "dp-ssgd": ("#349584", "D"), "dp-powersgd": ("#332288", "^"),
    "gep": ("#1f6f8b", "h"), "dp-tl": ("#6b5b3e", "8"),
    "dpsgd": (BLACK, "o"), "linear-probe": ("#5a5a5a", "*"), "topk": ("#8c6d4f", "<"), "powersgd": ("#5a8dc8", "^"),
    "sgd": ("#949494", "X"),
}  # fmt: skip
"""Colour and marker of each method, in the order of every legend: fedlsg's own, the baselines, those without noise."""
SPARE: Sequence[Look] = tuple((colour, marker) for marker in "v<>P" for colour, _ in LOOKS.values())
MARKERS = "osD^X*phd8"
"""Markers of variants. SPARE gives none of them to a method."""


def canonical(method: str) -> tuple[int, str]:
    """The place of a method in every legend."""
    known = list(LOOKS)
    return (known.index(method) if method in LOOKS else len(known), method)


def looks(names: Sequence[tuple[str, str]]) -> dict[str, Look]:
    """Colour and marker by the name of a line, from (method, name): one colour a method, one marker a variant."""
    strangers = sorted({method for method, _ in names} - LOOKS.keys())
    seen: dict[str, int] = {}
    found = {}
    for method, name in sorted(set(names)):
        colour, own = LOOKS.get(method) or SPARE[strangers.index(method) % len(SPARE)]
        order = [own, *(marker for marker in MARKERS if marker != own)]
        variant = seen[method] = seen.get(method, -1) + 1
        found[name] = (colour, order[variant % len(order)])
    return found
