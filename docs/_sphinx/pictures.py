"""Pictures of docs/pictures are written into the page, so that they follow the page's light and
dark colours.

As files (on GitHub, in a terminal's viewer) they follow the reader's system.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

FOLDER = "pictures/"


def write_into_page(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Replace each image of the folder by the SVG itself, with its alternative text as the
    label.
    """
    for image in list(doctree.findall(nodes.image)):
        if str(image["uri"]).startswith(FOLDER):
            svg = (Path(app.srcdir) / image["uri"]).read_text()
            image.replace_self(nodes.raw("", labelled(svg, image.get("alt", "")), format="html"))


def labelled(svg: str, label: str) -> str:
    """The SVG element alone, as an image with a label for readers that do not see it."""
    element = svg[svg.index("<svg") :]
    text = label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return re.sub(r"<svg\b", f'<svg role="img" aria-label="{text}"', element, count=1)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-resolved", write_into_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
