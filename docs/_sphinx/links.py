"""``python -m docs._sphinx.links build/site``: every link of the built pages leads to a file and a
place that exist.

Sphinx checks links between pages while it builds. This reads the result: also pages of code,
notebooks and pictures. Links to other sites are counted, not followed; what a page loads (pictures,
scripts, styles) must not come from one.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}
"""Elements that make a browser load something."""
SAID = ("canonical", "search", "index", "next", "prev", "top")
"""Kinds of <link> that load nothing."""


@dataclass
class Page(HTMLParser):
    """Links, loaded addresses and the places (ids) of a page."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect from one element."""
        found = {name: value or "" for name, value in attrs}
        self.places |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in LOADED and LOADED[tag] in found and found.get("rel") not in SAID:
            self.loaded.append(found[LOADED[tag]])


@cache
def read(path: Path) -> Page:
    """A page of the site."""
    page = Page()
    page.feed(path.read_text())
    return page


def problems(site: Path) -> Iterator[str]:
    """Links that lead nowhere, and what is loaded from elsewhere, each with its page."""
    for path in sorted(site.rglob("*.html")):
        page = read(path)
        for link in dict.fromkeys([*page.links, *page.loaded]):
            if urlsplit(link).scheme or link.startswith("//"):
                if link in page.loaded and not link.startswith("data:"):
                    yield f"{path.relative_to(site)} loads {link}"
            elif not leads_somewhere(path, link):
                yield f"{path.relative_to(site)} links to {link}"


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether a relative link of a page leads to a file and, if it names one, to a place in it."""
    parts = urlsplit(link)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()
    if not target.is_file():
        return False
    place = unquote(parts.fragment)
    return not place or target.suffix != ".html" or place in read(target).places


if __name__ == "__main__":
    wrong = list(problems(Path(sys.argv[1])))
    print(
        "\n".join(wrong)
        or f"all links of {len(list(Path(sys.argv[1]).rglob('*.html')))} pages lead somewhere"
    )
    sys.exit(bool(wrong))
