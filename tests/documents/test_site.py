"""The site, the reference and the README: every page is there once, is what the code makes, and is
described.

The site itself is built by .ci/run, with every warning an error; here only its own parts are
tested.
"""

import re

import click
import pytest

import fedlsg
from docs._sphinx.reference.api import GROUPS
from docs._sphinx.reference.pages import PAGES
from fedlsg.simulations import workloads
from tests.documents.check_commands import command_line
from tests.places import REPOSITORY

pytest.importorskip("sphinx", reason="the extra docs is not installed")

from docs._sphinx.links import problems
from docs._sphinx.navigation import CHAPTERS

DOCS = REPOSITORY / "docs"


def test_every_page_is_in_the_navigation_once():
    listed = [page for pages in CHAPTERS.values() for page in pages]
    there = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.glob("**/*.md")}
    there -= {name for name in there if name.startswith(("results/", "notebooks/"))} - {
        "results/index"
    }
    assert sorted(listed) == sorted(there - {"index"})


def test_every_picture_is_described():
    used = "".join(path.read_text() for path in DOCS.glob("**/*.md"))
    for path in (DOCS / "pictures").glob("*.svg"):
        (before,) = used.split(f"pictures/{path.name})")[:-1]
        description = before.rpartition("![")[2].partition("]")[0]
        assert len(description) > 40, path


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (
            '<a href="b/c.html#here">c</a><a href="#top">t</a><a href="https://example.org/gone">x</a>',
            0,
        ),
        (
            '<h1 id="top"></h1><img src="data:image/png;base64,aGk="><link rel="canonical" href="https://example.org">',
            0,
        ),
        ('<a href="b/gone.html">x</a>', 1),
        ('<a href="b/c.html#gone">x</a>', 1),
        ('<a href="b/">x</a>', 1),
        ('<img src="gone.png">', 1),
        ('<script src="https://example.org/x.js"></script>', 1),
        ('<link rel="stylesheet" href="//example.org/x.css">', 1),
    ],
)
def test_links_of_the_built_pages(tmp_path, body, count):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.html").write_text('<p id="here"></p>')
    (tmp_path / "a.html").write_text(f'<p id="top"></p>{body}')
    assert len(list(problems(tmp_path))) == count


FOLDER = REPOSITORY / "docs" / "reference"
AGAIN = "write it again: python -m docs._sphinx.reference"


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_makes(name):
    assert (FOLDER / f"{name}.md").read_text() == PAGES[name](), AGAIN


def test_there_are_no_other_pages():
    assert {path.stem for path in FOLDER.glob("*.md")} == set(PAGES)


def test_every_public_name_is_described():
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(
        set(fedlsg.__all__) - {"__version__"}
    )


def test_every_command_and_every_workload_is_described():
    commands, sets = ((FOLDER / f"{name}.md").read_text() for name in ("commands", "workloads"))
    for name, command in command_line().commands.items():
        if command.hidden:
            continue
        section = commands.split(f"## fedlsg {name}\n")[1].split("\n## ")[0]
        options = [
            one for one in command.params if isinstance(one, click.Option) and not one.hidden
        ]
        assert all(option.opts[0] in section for option in options)
    assert all(f"| `{name}` |" in sets for name in workloads.names())


README = REPOSITORY / "README.md"
PAPERS = REPOSITORY / "docs" / "papers.md"
ROW = re.compile(r"^\| (?!in the paper)([^|-][^|]*) \| ([^|]*) \|", re.MULTILINE)
SAID = ("missing", "theory", "drawing", "fedlsg ", "python ", "preset", "](results/")


def test_the_readme_is_short_and_keeps_the_test_command():
    text = README.read_text()
    assert len(text.splitlines()) < 120
    command = 'python -m pytest -m "not slow and not gpu" -n 2'
    assert command in text
    assert command in (REPOSITORY / ".ci" / "run").read_text()


def uncovered(text: str) -> list[str]:
    """Rows that neither name a command or a result nor say that there is none."""
    return [item for item, cell in ROW.findall(text) if not any(word in cell for word in SAID)]


def test_every_row_of_the_papers_has_a_command_or_says_missing():
    text = PAPERS.read_text()
    assert uncovered(text) == []
    assert len(ROW.findall(text)) > 75
    assert uncovered(text + "\n| Eq. 9 | soon | |\n") == ["Eq. 9"]
