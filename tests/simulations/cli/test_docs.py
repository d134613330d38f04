"""``fedlsg docs`` finds the documents in a clone and where pip puts them, and shows each page."""

import pytest
import typer.testing

from simulations.cli import docs
from simulations.cli.app import app
from tests.places import REPOSITORY


def output(*arguments: str) -> str:
    done = typer.testing.CliRunner().invoke(app, ["docs", *arguments])
    assert done.exit_code == 0, done.exception
    return done.output


def test_the_list_names_the_pages():
    text = output()
    assert all(name in text for name in ("index", "methods", "concepts/carriers", "results/index", "changelog"))
    assert "results/digits" not in text


@pytest.mark.parametrize("name", ["methods", "docs/methods.md", "results/digits"])
def test_a_page_is_shown_as_it_is_where_there_is_no_terminal(name):
    path = REPOSITORY / "docs" / f"{name.removeprefix('docs/').removesuffix('.md')}.md"
    assert output(name) == path.read_text()


def test_every_page_can_be_shown():
    for name in docs.names(REPOSITORY / "docs"):
        assert docs.read(REPOSITORY / "docs", name).startswith("# "), name


def test_an_unknown_page_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'methods'"):
        docs.read(REPOSITORY / "docs", "methdos")


def test_without_a_clone_the_installed_files_are_found(tmp_path, monkeypatch):
    """As ``pip install --target`` leaves them; then as a plain environment does; then not at all."""
    monkeypatch.setattr(docs, "__file__", str(tmp_path / "simulations" / "cli" / "docs.py"))
    monkeypatch.setattr(docs, "distribution", lambda _: type("D", (), {"files": None})())
    monkeypatch.setattr(docs.sys, "prefix", str(tmp_path / "environment"))
    with pytest.raises(FileNotFoundError, match="not installed here"):
        docs.find()
    for folder in (tmp_path / "environment" / docs.SHARE, tmp_path / docs.SHARE):
        folder.mkdir(parents=True)
        (folder / "index.md").write_text("# A title\n")
        assert docs.find() == folder
