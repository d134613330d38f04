"""Links from a page to code outside of docs/ lead to a page that shows the code, so that they work
offline.

A reference ``[text](../fedlsg/lowrank.py)`` leads on the site to ``source/fedlsg/lowrank.py.html``.
A folder becomes a list of its files. Links to Markdown files outside of docs/ lead to the page of
the site that has their text.
"""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
SCHEME = "repository:"
OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)\s]*)\)")
PAGES = {"README.md": "index", "CHANGELOG.md": "changelog"}
"""Pages that have the text of a Markdown file outside of docs/."""


def mark_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Write links that leave docs/ with a scheme of their own, which Sphinx leaves alone."""
    folder = (Path(app.srcdir) / page).parent
    source[0] = OUTSIDE.sub(lambda link: f"]({marked(link[1], folder)})", source[0])


def marked(link: str, folder: Path) -> str:
    """``repository:PATH`` for a link out of docs/, else the link."""
    target = (folder / link.partition("#")[0]).resolve()
    if target.is_relative_to(ROOT / "docs") or not target.exists():
        return link
    return SCHEME + target.relative_to(ROOT).as_posix()


def resolve(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Point each marked link to the page of its file."""
    for link in doctree.findall(nodes.reference):
        uri = str(link.get("refuri", ""))
        if uri.startswith(SCHEME):
            path = uri.removeprefix(SCHEME)
            wanted(app).add(path)
            link["refuri"] = app.builder.get_relative_uri(page, PAGES.get(path, f"source/{path}"))
            link["internal"] = True


def wanted(app: Sphinx) -> set[str]:
    """Paths that pages link to."""
    found: set[str] = app.env.__dict__.setdefault("fedlsg_sources", set())
    return found


def code_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file that is linked, and for each file of a folder that is linked."""
    done: set[str] = set()
    todo = sorted(wanted(app) - set(PAGES))
    while todo:
        path = todo.pop()
        if path in done:
            continue
        done.add(path)
        inside = children(ROOT / path)
        todo += [child.relative_to(ROOT).as_posix() for child in inside]
        body = listing(inside) if (ROOT / path).is_dir() else highlighted(app, ROOT / path)
        yield (
            f"source/{path}",
            {"title": path, "body": f"<h1>{escape(path)}</h1>{body}"},
            "page.html",
        )


def children(folder: Path) -> list[Path]:
    """What a page of a folder lists; nothing for a file."""
    if not folder.is_dir():
        return []
    return sorted(
        path for path in folder.iterdir() if path.name[0] not in "._" or path.name == "__init__.py"
    )


def listing(paths: list[Path]) -> str:
    """Links to the pages of files in a folder, which are in a folder of its name."""
    items = (
        f'<li><a href="{path.parent.name}/{path.name}.html">{escape(path.name)}</a></li>'
        for path in paths
    )
    return f"<ul>{''.join(items)}</ul>"


def highlighted(app: Sphinx, path: Path) -> str:
    """A file's code as HTML."""
    language = {".py": "python", ".toml": "toml"}.get(path.suffix, "text")
    return str(app.builder.highlighter.highlight_block(path.read_text(), language))  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", mark_outside)
    app.connect("doctree-resolved", resolve)
    app.connect("html-collect-pages", code_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
