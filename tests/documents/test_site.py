"""The site: every page is in its navigation, and what leaves docs/ or is no Markdown becomes a page, too.

The site itself is built by .ci/run, with every warning an error; here only its own parts are tested.
"""

import pytest

pytest.importorskip("sphinx", reason="the extra docs is not installed")

from docs._sphinx.links import problems
from docs._sphinx.navigation import CHAPTERS
from tests.places import REPOSITORY

DOCS = REPOSITORY / "docs"


def test_every_page_is_in_the_navigation_once():
    listed = [page for pages in CHAPTERS.values() for page in pages]
    there = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.glob("**/*.md")}
    there -= {name for name in there if name.startswith(("results/", "notebooks/"))} - {"results/index"}
    assert sorted(listed) == sorted(there - {"index"})


def test_every_picture_is_described():
    used = "".join(path.read_text() for path in DOCS.glob("**/*.md"))
    for path in (DOCS / "pictures").glob("*.svg"):
        (before,) = used.split(f"pictures/{path.name})")[:-1]
        description = before.rpartition("![")[2].partition("]")[0]
        assert len(description) > 40, path


@pytest.mark.parametrize(("body", "count"), [
    ('<a href="b/c.html#here">c</a><a href="#top">t</a><a href="https://example.org/gone">x</a>', 0),
    ('<h1 id="top"></h1><img src="data:image/png;base64,aGk="><link rel="canonical" href="https://example.org">', 0),
    ('<a href="b/gone.html">x</a>', 1),
    ('<a href="b/c.html#gone">x</a>', 1),
    ('<a href="b/">x</a>', 1),
    ('<img src="gone.png">', 1),
    ('<script src="https://example.org/x.js"></script>', 1),
    ('<link rel="stylesheet" href="//example.org/x.css">', 1),
])  # fmt: skip
def test_links_of_the_built_pages(tmp_path, body, count):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.html").write_text('<p id="here"></p>')
    (tmp_path / "a.html").write_text(f'<p id="top"></p>{body}')
    assert len(list(problems(tmp_path))) == count
