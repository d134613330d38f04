"""Figures as parts of a page: a panel for each pair of axes, one legend as words of the page, and what lines show.

A browser lays the panels out: two in a row where there is room, one on a phone. matplotlib writes the text of an SVG as
text.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence, Set
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from simulations.report.page import Drawing, Key, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
POINTS = 72 / 96
"""matplotlib's points in a CSS pixel."""
EDGE = 3.0
"""Points around a panel."""
LAST = "guessing"
"""The reference of every figure: the last entry of its legend."""
DESCRIBED = 12
"""Lines of a panel that its words describe."""
DIGITS = re.compile(r"(\d+\.\d{2})\d+")
FONT = re.compile(r"font: (?:\w+ )*?([\d.]+)px [^;\"]*")
FAMILY = re.compile(r"font-family: [^;\"]*;? ?")
SIZE = re.compile(r"font-size: ([\d.]+)px")
REFERENCE = re.compile(r'(?:url\(|href=")#([^")]+)')
TAG = re.compile(r"<[^<>]*>")


def drawing(save: bytes, figure: "Figure", caption: str, *, columns: int = 2, order: Sequence[str] = ()) -> Drawing:
    """The panels of a figure from its SVG, ``save``, in which every pair of axes has the gid ``axes-I``.

    order: labels of the legend that the panels share; none if there is no such legend.
    """
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(save)
    groups = {group.get("id"): group for group in root.iter(f"{{{SVG}}}g")}
    defined = {one.get("id", ""): one for kind in ("clipPath", "path") for one in root.iter(f"{{{SVG}}}{kind}")}
    shown = [axes for axes in figure.axes if axes.get_visible() and not _is_scale(axes)]
    owned = [[axes, *(o for o in figure.axes if _is_scale(o) and _belongs(o) is axes)] for axes in shown]
    places = [_place(figure, own) for own in owned]
    widest = max(right - left for left, _, right, _ in places)
    panels = [
        _panel(
            own, [groups[str(one.get_gid())] for one in own], defined, (min(left, right - widest), top, right, bottom)
        )
        for own, (left, top, right, bottom) in zip(owned, places, strict=True)
    ]
    place = {_joined(label): index for index, label in enumerate(order)}
    shared = sorted(keys(figure.axes), key=lambda key: place.get(key.name, len(order))) if order else ()
    return Drawing(panels=tuple(panels), legend=tuple(shared), caption=caption, columns=columns)


def mark_axes(figure: "Figure") -> None:
    """Give every pair of axes the gid by which ``drawing`` finds it."""
    for index, axes in enumerate(figure.axes):
        axes.set_gid(f"axes-{index}")


def complete_axes(figure: "Figure") -> None:
    """Give each panel the words that it shares with the panels next to it: on a phone they are far away."""
    shown = [axes for axes in figure.axes if axes.get_visible() and not _is_scale(axes)]
    for axes in shown:
        for across, group in ((True, axes.get_shared_x_axes()), (False, axes.get_shared_y_axes())):
            others = [other for other in shown if other is not axes and group.joined(axes, other)]
            if not others:
                continue
            axes.tick_params(labelbottom=True) if across else axes.tick_params(labelleft=True)
            name = "xlabel" if across else "ylabel"
            words = [getattr(other, f"get_{name}")() for other in (axes, *others)]
            getattr(axes, f"set_{name}")(next((said for said in words if said), ""))


def _is_scale(axes: "Axes") -> bool:
    """Whether these axes are the colour scale of others."""
    return getattr(axes, "_colorbar", None) is not None


def _belongs(scale: Any) -> object:
    return scale._colorbar.mappable.axes


def _place(figure: "Figure", own: Sequence[Any]) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of these axes with all their words, in points from the top left of the figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [box for axes in own if (box := axes.get_tightbbox(renderer)) is not None]
    scale, height = 72 / figure.dpi, figure.get_figheight() * 72
    left, right = min(box.x0 for box in boxes) * scale, max(box.x1 for box in boxes) * scale
    bottom, top = min(box.y0 for box in boxes) * scale, max(box.y1 for box in boxes) * scale
    return left - EDGE, height - top - EDGE, right + EDGE, height - bottom + EDGE


def _panel(
    own: Sequence[Any], groups: Sequence[Any], defined: dict[str, Any], place: tuple[float, float, float, float]
) -> Panel:
    """One SVG with what these axes show, cut to a place in the figure; with marks that another panel ``defined``."""
    left, top, right, bottom = place
    text = "".join(ElementTree.tostring(group, encoding="unicode") for group in groups)
    used = [name for name in _references(text) if f' id="{name}"' not in text]
    text += "".join(["<defs>", *(ElementTree.tostring(defined[name], encoding="unicode") for name in used), "</defs>"])
    moved = f'<g transform="scale({1 / POINTS:.4f}) translate({-left:.2f} {-top:.2f})">{_tidied(text)}</g>'
    title = own[0].get_title(loc="left") or own[0].get_title() or own[0].get_ylabel() or "figure"
    legend = keys(own[:1]) if own[0].get_legend() is not None else ()
    size = (round((right - left) / POINTS), round((bottom - top) / POINTS))
    return Panel(svg=moved, size=size, title=_plain(title), words=describe(own[0]), legend=tuple(legend))


def _references(text: str) -> list[str]:
    """The ids that tags refer to, each once; what looks so in words is none."""
    return list(dict.fromkeys(name for tag in TAG.findall(text) for name in REFERENCE.findall(tag)))


def _tidied(text: str) -> str:
    """Shorter, with the page's font, and with ids that no other figure has. Words stay as they are."""
    text = re.sub(r">\s+<", "><", text)
    prefix = "p" + hashlib.sha256(text.encode()).hexdigest()[:6]
    named = set(_references(text))
    return TAG.sub(lambda tag: _tidied_tag(tag[0], prefix, named), text)


def _tidied_tag(tag: str, prefix: str, named: Set[str]) -> str:
    tag = re.sub(r' xmlns(:\w+)?="[^"]*"', "", tag)
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in named else "", tag)
    tag = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", tag)
    tag = FAMILY.sub("", FONT.sub(r"font-size: \1px", tag))
    tag = SIZE.sub(r"font-size: calc(\1px * var(--words, 1))", tag)
    return DIGITS.sub(r"\1", tag)


def keys(panels: Iterable["Axes"]) -> list[Key]:
    """The legend of some panels: each label once, in the order of drawing, the reference last."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(_joined(label), handle)
    return [_key(name, found[name]) for name in sorted(found, key=lambda name: name == LAST)]


def _joined(label: str) -> str:
    """A label on one line."""
    return " ".join(label.replace("-\n", "-").split())


def _key(name: str, handle: Any) -> Key:
    """A line, the line of error bars, or bars."""
    from matplotlib.colors import to_hex
    from matplotlib.lines import Line2D

    line = handle if isinstance(handle, Line2D) else handle[0]
    if not isinstance(line, Line2D):
        return Key(name=name, colour=to_hex(line.get_facecolor()), line=False, patch=True)
    dashes = {"--": "6 3", ":": "2 3", "-.": "7 3 2 3"}
    face = line.get_markerfacecolor()
    return Key(
        name=name,
        colour=to_hex(line.get_color()),
        dashes=dashes.get(str(line.get_linestyle()), ""),
        line=line.get_linestyle() not in ("None", "none", " ", ""),
        marker=_outline(line.get_marker()),
        filled=face == "auto" or to_hex(face) == to_hex(line.get_color()),
    )


def _outline(marker: Any) -> str:
    """The outline of a marker as the path of an SVG, ten pixels wide; empty for none."""
    from matplotlib.markers import MarkerStyle

    if marker in ("", "None", "none", " ", None):
        return ""
    style = MarkerStyle(marker)
    outline: Any = style.get_path().transformed(style.get_transform()).to_polygons(closed_only=False)
    lines = [" L".join(f"{9 * x:.1f} {-9 * y:.1f}" for x, y in polygon) for polygon in outline]
    return " ".join(f"M{line}" for line in lines)


def describe(axes: "Axes") -> str:
    """What the lines of a panel show, for a reader who cannot see it: the first and the last point of each."""
    across, up = _plain(axes.get_xlabel()), _plain(axes.get_ylabel() or axes.get_title(loc="left"))
    said = [f"Across: {across}." if across else "", f"Up: {up}." if up else ""]
    handles, labels = axes.get_legend_handles_labels()
    lines = list(zip(labels, handles, strict=True)) or [("", line) for line in axes.lines]
    said += [_ends(name, handle) for name, handle in lines[:DESCRIBED]]
    return " ".join(part for part in said if part)


def _ends(name: str, handle: Any) -> str:
    """The first and the last point of a line; the level of one across the whole panel. Empty for anything else."""
    line = handle if hasattr(handle, "get_xdata") else handle[0]
    if not hasattr(line, "get_xdata"):
        return ""
    pairs = zip(line.get_xdata(), line.get_ydata(), strict=False)
    points = [(x, y) for x, y in pairs if (isinstance(x, str) or _is_number(x)) and _is_number(y)]
    if not points:
        return ""
    called = f"{_joined(name)}: " if name else ""
    has_x, has_y = line.get_transform().contains_branch_seperately(line.axes.transData)
    if not (has_x and has_y):
        return f"{called or 'a line across: '}{float(points[0][1 if has_y else 0]):.4g}."
    places = (x if isinstance(x, str) else f"{float(x):.4g}" for x, _ in (points[0], points[-1]))
    first, last = (f"{float(y):.4g} at {x}" for x, (_, y) in zip(places, (points[0], points[-1]), strict=True))
    return f"{called}{first}." if first == last else f"{called}from {first} to {last}."


def _is_number(value: Any) -> bool:
    return (isinstance(value, int | float) or hasattr(value, "dtype")) and bool(value == value)


def _plain(words: str) -> str:
    """A label without the marks of its formulas."""
    return " ".join(re.sub(r"[$\\{}]", "", words).split())
