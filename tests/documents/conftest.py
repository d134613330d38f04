"""The reader's folder: files that documents tell the reader to write."""

import sys

import pytest

from fedlsg import strategies
from tests.documents.blocks import blocks
from tests.fedlsg.support.coarse_codec import planted
from tests.places import REPOSITORY

MINE = {
    "mine.py": ("docs/own.md", "# mine.py"),
    "sketch.py": ("docs/own-method.md", "in random public carriers"),
    "wide.py": ("docs/own-method.md", "A uniformly random mask"),
    "watch.py": ("docs/callbacks.md", "# watch.py"),
    "coarse.py": ("docs/own-method.md", "Two bytes a value"),
}
"""Files of the reader that command lines name: the document that shows each, and words of it."""


def shown(name: str) -> str:
    """The text of a file that a document shows."""
    document, words = MINE[name]
    (found,) = (
        b.text for b in blocks((REPOSITORY / document).read_text(), "python") if words in b.text
    )
    return found


@pytest.fixture
def reader(tmp_path, monkeypatch, own_code):
    """A folder with the files that the documents tell the reader to write; the grids of
    docs/results are there, too.
    """
    for name in MINE:
        (tmp_path / name).write_text(shown(name))
    (tmp_path / "docs").symlink_to(REPOSITORY / "docs")
    (tmp_path / "grid.toml").write_text(
        blocks((REPOSITORY / "docs/comparing.md").read_text(), "toml")[0].text
    )
    monkeypatch.chdir(tmp_path)
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "wide.py").write_text(shown("wide.py"))
    monkeypatch.setattr(
        strategies.recipes, "__path__", [*strategies.recipes.__path__, str(recipes)]
    )
    codecs = tmp_path / "codecs"
    codecs.mkdir()
    with planted(codecs, coarse=shown("coarse.py")):
        yield tmp_path
    sys.modules.pop("fedlsg.strategies.recipes.wide", None)
