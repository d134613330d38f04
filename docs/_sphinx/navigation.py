"""The order of the pages. Each page of docs/ is here once: Sphinx refuses a page that is in no list.

The lists become Sphinx' ``toctree`` here and not in the pages, so that the pages read well as plain Markdown, too.
"""

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

CHAPTERS = {
    "Start": ["start", "commands", "papers"],
    "Concepts": [
        "concepts/carriers", "concepts/masks", "concepts/clip-and-noise", "concepts/ledger", "concepts/bytes",
        "concepts/trust", "glossary",
    ],
    "How to": [
        "own", "own-method", "own-loop", "flower-app", "callbacks", "choosing", "tuning", "comparing", "features",
        "pretrained", "federations", "attacks", "client-level", "secure-aggregation", "personal", "deployment",
        "scaling", "gpu", "outputs",
    ],
    "Reference": [
        "methods", "optimizers", "settings", "reference/workloads", "reference/models", "reference/codecs",
        "reference/commands", "reference/api", "files", "layers", "communication", "presets", "discrete-noise", "code",
    ],
    "Evidence": ["results/index", "performance"],
    "Promises": ["privacy", "stability", "changelog"],
}  # fmt: skip
"""Chapters of the side bar, with their pages in order."""


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
        pages = [name.removeprefix("results/") for name in found if name.startswith("results/") and name != page]
        source[0] += toctree(pages, hidden="")


def chapters(app: Sphinx) -> dict[str, list[str]]:
    """The chapters, with the notebooks that exist after the first pages."""
    books = sorted(name for name in app.env.found_docs if name.startswith("notebooks/"))
    return {name: [*pages, *books] if name == "Start" else pages for name, pages in CHAPTERS.items()}


def read_again(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """The two pages whose lists change with other files, or with this one."""
    return [name for name in ("index", "results/index") if name in env.found_docs]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", add_toctrees)
    app.connect("env-get-outdated", read_again)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
