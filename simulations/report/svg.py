"""A figure of matplotlib as a part of a page: smaller, in the page's font, and with ids of its own.

matplotlib writes the text of an SVG as text.
"""

import hashlib
import re
from collections.abc import Set
from xml.etree import ElementTree

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
SCALE = 96 / 72
"""CSS pixels in one of matplotlib's points."""
DIGITS = re.compile(r"(\d+\.\d{2})\d+")
FONT = re.compile(r"font: (?:\w+ )*?([\d.]+)px [^;\"]*")
FAMILY = re.compile(r"font-family: [^;\"]*;? ?")
SIZE = re.compile(r"font-size: ([\d.]+)px")
REFERENCE = re.compile(r'(?:url\(|href=")#([^")]+)')
TAG = re.compile(r"<[^<>]*>")


def part_of(save: bytes, size: tuple[float, float]) -> tuple[str, tuple[int, int]]:
    """What is inside of an SVG of ``size`` inches, scaled to CSS pixels, and its size in them."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(save)
    inner = "".join(ElementTree.tostring(one, encoding="unicode") for one in root if not one.tag.endswith("metadata"))
    return f'<g transform="scale({SCALE:.4f})">{_tidied(inner)}</g>', (round(96 * size[0]), round(96 * size[1]))


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
