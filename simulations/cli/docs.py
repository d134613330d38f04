"""``fedlsg docs``: the documentation that is installed with fedlsg, for those who have no clone."""

from pathlib import Path
from typing import Annotated

import click
import typer
from rich.console import Console
from rich.markdown import Markdown

from fedlsg.choices import did_you_mean
from simulations.cli.options import console, option

HERE = Path(__file__).resolve().parents[1]
INSTALLED, CLONE = HERE / "documentation", HERE.parent / "docs"
"""The pages of an installed wheel, where build_backend.py copies them, and those of a clone."""
RESULTS = "results/"
"""Pages of measured results, which are many."""
WIDTH = 100


def docs(
    page: Annotated[str | None, typer.Argument(metavar="[PAGE]", help="A page, such as own; default: a list.")] = None,
    path: Annotated[bool, option("--path", help="Print where the pages are, or the file of one.")] = False,
) -> None:
    """The documentation as it was installed: a list of its pages, or one of them.

    On a terminal a page is laid out and shown in a pager. Elsewhere it is printed as it is, in Markdown.
    """
    folder = find_folder()
    if page is None:
        print(folder) if path else print_list(pages_of(folder), console)
        return
    file = find_page(pages_of(folder), page)
    if path:
        print(file)
    elif console.is_terminal:
        with console.capture() as laid_out:
            console.print(Markdown(file.read_text()), width=min(console.width, WIDTH))
        click.echo_via_pager(laid_out.get())
    else:
        print(file.read_text(), end="")


def find_folder() -> Path:
    """The folder of the pages. Raises ValueError where none were installed, as in a Flower bundle."""
    if INSTALLED.is_dir():
        return INSTALLED
    if (CLONE.parent / "pyproject.toml").exists() and CLONE.is_dir():  # else docs/ would be another package's
        return CLONE
    raise ValueError(f"expected the documentation in {INSTALLED}: install fedlsg with pip, or read docs/ of a clone")


def pages_of(folder: Path) -> dict[str, Path]:
    """Every page by its name, which is its path without ".md"; folders with "_" belong to the site's layout."""
    names = {file.relative_to(folder).with_suffix(""): file for file in sorted(folder.rglob("*.md"))}
    return {name.as_posix(): file for name, file in names.items() if not any(part[0] == "_" for part in name.parts)}


def find_page(pages: dict[str, Path], page: str) -> Path:
    """The file of a page; "docs/own.md" is "own". Raises ValueError for an unknown one, with the nearest name."""
    name = page.removeprefix("./").removeprefix("docs/").partition("#")[0].removesuffix(".md")
    if name not in pages:
        raise ValueError(f"unknown page {page!r}{did_you_mean(name, pages)} (fedlsg docs lists them all)")
    return pages[name]


def print_list(pages: dict[str, Path], console: Console) -> None:
    """Each page with its title; those of results are only counted."""
    shown = {name: file for name, file in pages.items() if not name.startswith(RESULTS)}
    wide = max(map(len, shown))
    for name, file in shown.items():
        console.print(f"{name:<{wide}}  {title_of(file)}", markup=False, highlight=False, soft_wrap=True)
    results = sorted(name for name in pages if name.startswith(RESULTS))
    if results:
        words = (
            f"{len(results)} pages of measured results, such as {results[0]}; fedlsg docs --path says where they are."
        )
        console.print(f"\n{words}", markup=False, highlight=False)
    console.print("fedlsg docs PAGE shows one.", markup=False, highlight=False)


def title_of(file: Path) -> str:
    """The first heading of a page."""
    with file.open() as lines:
        return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), "")
