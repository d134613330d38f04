"""The order of the pages. Each page of docs/ is here once: Sphinx refuses a page that is in no
list.

The lists become Sphinx' ``toctree`` here and not in the pages, so that the pages read well as plain
Markdown, too.
"""

from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

CHAPTERS = {
    "Start": ["start", "commands", "troubleshooting"],
    "Your own code": [
        "own",
        "own-method",
        "own-loop",
        "flower-app",
        "callbacks",
        "pretrained",
        "peft",
        "features",
    ],
    "Concepts": [
        "concepts/carriers",
        "concepts/masks",
        "concepts/clip-and-noise",
        "concepts/ledger",
        "concepts/bytes",
        "concepts/trust",
        "glossary",
    ],
    "Methods": ["methods", "choosing", "tuning", "comparing", "optimizers", "personal", "presets"],
    "Privacy": [
        "privacy",
        "attacks",
        "client-level",
        "secure-aggregation",
        "discrete-noise",
        "layers",
        "stability",
    ],
    "Bytes and machines": [
        "communication",
        "performance",
        "federations",
        "scaling",
        "gpu",
        "deployment",
    ],
    "Reference": [
        "settings",
        "reference/commands",
        "reference/api",
        "reference/workloads",
        "reference/models",
        "reference/codecs",
    ],
    "Results and files": ["results/index", "papers", "outputs", "files", "code", "changelog"],
}
"""Chapters of the side bar, with their pages in order. One chapter is open: with the titles of the
others it shows at most ``OPEN`` entries."""
OPEN = 15


def toctree(pages: list[str], **options: str) -> str:
    """A list of pages as MyST reads it."""
    lines = [f":{name}: {value}".rstrip() for name, value in options.items()]
    return "\n".join(["", "```{toctree}", *lines, "", *pages, "```", ""])


def add_toctrees(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the chapters to the front page, and the pages of results to their index."""
    if page == "index":
        lists = (toctree(pages, hidden="", caption=name) for name, pages in chapters(app).items())
        source[0] += "".join(lists)
    elif page == "results/index":
        found = sorted(app.env.found_docs)
        pages = [
            name.removeprefix("results/")
            for name in found
            if name.startswith("results/") and name != page
        ]
        source[0] += toctree(pages, hidden="")


def chapters(app: Sphinx) -> dict[str, list[str]]:
    """The chapters, with the notebooks that exist after the first pages."""
    books = sorted(name for name in app.env.found_docs if name.startswith("notebooks/"))
    return {
        name: [*pages, *books] if name == "Start" else pages for name, pages in CHAPTERS.items()
    }


def show_chapters(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Give the side bar (``docs/_templates``) its chapters: (title, whether it is open, pages)."""
    place = page if page != "index" else CHAPTERS["Start"][0]
    place = "results/index" if page.startswith("results/") else place
    titles = app.env.titles
    context["chapters"] = [
        (
            name,
            place in pages,
            [(context["pathto"](one), titles[one].astext(), one == page) for one in pages],
        )
        for name, pages in chapters(app).items()
    ]


def read_again(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """The two pages whose lists change with other files, or with this one."""
    return [name for name in ("index", "results/index") if name in env.found_docs]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", add_toctrees)
    app.connect("env-get-outdated", read_again)
    app.connect("html-page-context", show_chapters)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
