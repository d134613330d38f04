"""The one builder of pages: one HTML file from a page, for a screen, a phone and paper, light and dark."""

import base64
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePath

from simulations.report.page import Download, Drawing, Page, Part, Slides
from simulations.report.style import CSS
from simulations.report.template import TEMPLATE

SECTIONS = 3
"""Titled sections from which on a page has a list of them at its top."""
KINDS = {".csv": "text/csv", ".json": "application/json", ".md": "text/markdown", ".toml": "application/toml"}
ASSETS = Path(__file__).parent / "assets"
LIBRARIES = ("chart.umd.min.js", "chartjs-plugin-zoom.min.js")


def render(page: Page, follow: str = "") -> str:
    """The page as HTML. Guarantee: text stays text, whatever it holds, and a browser requests nothing.

    Jinja escapes every value. Only the style sheet, the scripts, data that ``script_json`` escaped, and the SVG of a
    panel, whose text matplotlib escaped, are inserted as they are. The page's own policy lets a browser run these
    scripts alone, and load nothing. ``follow``: a script after them, for a page on loopback that asks its own server.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    drawn = any(isinstance(part, Drawing) and part.data for part in _parts(page))
    run = (*scripts(drawn=drawn), *([follow] if follow else []))
    return environment.from_string(TEMPLATE).render(
        page=page, css=CSS, listed=SECTIONS, target=target, scripts=run, policy=policy(run, asks=bool(follow))
    )


def policy(run: Iterable[str], *, asks: bool = False) -> str:
    """What a browser may do with the page: run these scripts and no other, and load nothing that is not in it."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run)
    known = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    own = "connect-src 'self'; " if asks else ""
    return f"default-src 'none'; {own}script-src {known}; style-src 'unsafe-inline'; img-src data:"


def _parts(page: Page) -> Iterable[Part]:
    for part in (part for section in page.sections for part in section.parts):
        yield part
        if isinstance(part, Slides):
            yield from (own for _, parts in part.slides for own in parts)


@functools.cache
def scripts(*, drawn: bool) -> tuple[str, ...]:
    """What a page runs, with the library if it has figures; nothing in a Flower bundle, which holds no scripts."""
    names = (*(LIBRARIES if drawn else ()), "page.js")
    if not all((ASSETS / name).exists() for name in names):
        return ()
    return tuple((ASSETS / name).read_text().split("//# sourceMappingURL")[0] for name in names)


def target(file: Download) -> str:
    """Where the link of a file leads: to the data in the page, or to the file next to it."""
    if file.content is None:
        return file.name
    kind = KINDS.get(PurePath(file.name).suffix, "text/plain")
    return f"data:{kind};base64,{base64.b64encode(file.content).decode()}"
