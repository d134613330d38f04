"""``fedlsg docs``: the documents, for those who have the package and no clone."""

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedlsg.choices import did_you_mean
from simulations.cli.options import console

SHARE = Path("share/doc/fedlsg")
"""Where a wheel puts them, below the environment's folder (pyproject.toml)."""
WIDEST = 100
"""Columns of a page in a wide terminal."""


def docs(
    page: Annotated[str | None, typer.Argument(metavar="[PAGE]", help="A page of the list, such as methods.")] = None,
) -> None:
    """List the pages of the documents, or show one."""
    folder = find()
    if page is None:
        return show_list(folder)
    text = read(folder, page)
    if not sys.stdout.isatty():
        print(text, end="")
    else:
        from rich.markdown import Markdown

        console.print(Markdown(text), width=min(console.width, WIDEST))


def find() -> Path:
    """The folder of the documents. Raises FileNotFoundError where they are not installed."""
    for folder in places():
        if (folder / "index.md").exists():
            return folder
    raise FileNotFoundError("the documents are not installed here: pip install fedlsg again, or look into a clone")


def places() -> Iterator[Path]:
    """The clone that this code is in; where pip put the files of the wheel; the environment's own folder."""
    yield Path(__file__).resolve().parents[2] / "docs"
    try:
        files = distribution("fedlsg").files or []
    except PackageNotFoundError:
        files = []
    yield from (Path(str(file.locate())).parent for file in files if file.match("share/doc/fedlsg/index.md"))
    yield Path(__file__).resolve().parents[2] / SHARE  # pip install --target
    yield Path(sys.prefix) / SHARE


def names(folder: Path) -> list[str]:
    """Names of the pages, the front page first."""
    found = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.md"))
    return ["index", *sorted((name for name in found if name != "index"), key=lambda name: ("/" in name, name))]


def read(folder: Path, page: str) -> str:
    """The text of a page. Raises ValueError for an unknown name, with the nearest known one."""
    name = page.removeprefix("docs/").removesuffix(".md")
    known = names(folder)
    if name not in known:
        raise ValueError(f"no page {page!r}{did_you_mean(name, known)}; fedlsg docs lists them")
    if name == "changelog":  # the page only includes it
        return next(p for p in (folder / "CHANGELOG.md", folder.parent / "CHANGELOG.md") if p.exists()).read_text()
    return (folder / f"{name}.md").read_text()


def show_list(folder: Path) -> None:
    """Names and titles, and where the files are."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name in names(folder):
        if not name.startswith("results/") or name == "results/index":  # which names the others
            table.add_row(Text(name), Text(read(folder, name).partition("\n")[0].removeprefix("# ")))
    console.print(table, highlight=False)
    console.print(
        f"fedlsg docs PAGE shows one; the files are in {folder}", highlight=False, soft_wrap=True, markup=False
    )
