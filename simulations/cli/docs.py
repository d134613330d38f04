"""The commands that show help: first steps, ``fedlsg list``, ``settings`` and ``docs``."""

from pathlib import Path
from typing import Annotated

import click
import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text

from fedlsg.config.choices import choose, did_you_mean
from fedlsg.simulations.cli.options import console, option

HERE = Path(__file__).resolve().parents[1]
INSTALLED, CLONE = HERE / "documentation", HERE.parent / "docs"
"""The pages of an installed wheel, where build_backend.py copies them, and those of a clone."""
CHANGELOG = "changelog"
"""Name of the page of changes."""
START = "start"
"""Name of the first page in the list."""
RESULTS = "results/"
"""How names of pages of measured results begin, which are many."""
WIDTH = 100
"""Columns of a page on a terminal at most."""


def docs(
    page: Annotated[
        str | None, typer.Argument(metavar="[PAGE]", help="A page, such as own; default: a list.")
    ] = None,
    path: Annotated[
        bool, option("--path", help="Print where the pages are, or the file of one.")
    ] = False,
) -> None:
    """The documentation as it was installed: a list of its pages, or one of them.

    On a terminal a page is laid out and shown in a pager. Elsewhere it is printed as it is, in
    Markdown.
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
    """The folder of the pages. Raises ValueError if none were installed, as in a Flower bundle."""
    if INSTALLED.is_dir():
        return INSTALLED
    # without pyproject.toml, docs/ may belong to another package
    if (CLONE.parent / "pyproject.toml").exists() and CLONE.is_dir():
        return CLONE
    raise ValueError(
        f"expected the documentation in {INSTALLED}: install fedlsg with pip, or read docs/ of a "
        "clone"
    )


def pages_of(folder: Path) -> dict[str, Path]:
    """Every page by its name, which is its path without ".md".

    Folders whose name begins with "_" belong to the layout of the site.
    """
    pages = {}
    for file in sorted(folder.rglob("*.md")):
        name = file.relative_to(folder).with_suffix("")
        if not any(part[0] == "_" for part in name.parts):
            pages[name.as_posix()] = file
    changes = folder.parent / "CHANGELOG.md"  # of a clone; the site's own page only includes it
    if changes.exists():
        pages[CHANGELOG] = changes
    return pages


def find_page(pages: dict[str, Path], page: str) -> Path:
    """The file of a page; "docs/own.md" is "own". Raises ValueError for an unknown one, with the
    nearest name.
    """
    name = page.removeprefix("./").removeprefix("docs/").partition("#")[0].removesuffix(".md")
    if name not in pages:
        raise ValueError(
            f"unknown page {page!r}{did_you_mean(name, pages)} (fedlsg docs lists them all)"
        )
    return pages[name]


def print_list(pages: dict[str, Path], console: Console) -> None:
    """Each page with its title, the one to start with first; those of results are only counted."""
    first = sorted(pages, key=lambda name: (name != START, "/" in name, name))
    shown = {name: pages[name] for name in first if not name.startswith(RESULTS)}
    wide = max(map(len, shown))
    for name, file in shown.items():
        console.print(
            f"{name:<{wide}}  {title_of(file)}", markup=False, highlight=False, soft_wrap=True
        )
    results = sorted(name for name in pages if name.startswith(RESULTS))
    if results:
        words = (
            f"{len(results)} pages of measured results, such as {results[0]}; fedlsg docs --path "
            "says where they are."
        )
        console.print(f"\n{words}", markup=False, highlight=False)
    console.print("fedlsg docs PAGE shows one.", markup=False, highlight=False)


def title_of(file: Path) -> str:
    """The first heading of a page."""
    with file.open() as lines:
        return next(
            (line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), ""
        )


HEAD = "fedlsg simulates federated learning with differential privacy. Three things to do first:"
STEPS = (
    (
        "Train a model: real handwritten digits, five clients, epsilon 8. No download.",
        "fedlsg run",
    ),
    (
        "Compare methods at the same epsilon, and one without: a table, plots, report.html.",
        "fedlsg compare digits --methods lsg,dpsgd,sgd",
    ),
    (
        "Attack what the clients send: try to rebuild training images from it.",
        "fedlsg attack --compare lsg,dpsgd --images 4 --seconds 5",
    ),
)
"""The purpose and the command of each first step; none needs data of the user."""
MORE = (
    ("fedlsg --help", "lists all commands."),
    ("fedlsg COMMAND --help", "lists the options of one."),
    ("fedlsg docs", "lists the pages of the documentation; fedlsg docs PAGE shows one."),
)


def print_first_steps(console: Console) -> None:
    """Print the first steps, without markup in a log."""
    console.print(Text(HEAD))
    for number, (what, command) in enumerate(STEPS, 1):
        console.print()
        console.print(Text(f"{number}. {what}"))
        console.print(Padding(Text(command, style="bold"), (0, 0, 0, 5)), soft_wrap=True)
    console.print()
    for command, words in MORE:
        console.print(Text.assemble((command, "bold"), f"  {words}"))


LISTS = {
    "methods": "what --method takes",
    "workloads": "what WORKLOAD takes",
    "codecs": "what --codec takes",
    "presets": "settings of the papers, which --preset takes",
}
"""Arguments of ``fedlsg list``, and what they list. They are commands, too: ``fedlsg presets``."""


def list_names(
    what: Annotated[
        str | None, typer.Argument(metavar="[methods|workloads|codecs|presets]")
    ] = None,
    words: Annotated[
        str | None, typer.Argument(metavar="[NAME|WORDS]", help="A preset, or words to list by.")
    ] = None,
    json: Annotated[
        bool, option("--json", help="Of presets: every setting, for programs.")
    ] = False,
) -> None:
    """Names with a sentence each: what --method, WORKLOAD, --codec and --preset of fedlsg run
    take. Without a word: what lists there are.
    """
    if what is None:
        for name, meaning in LISTS.items():
            console.print(f"fedlsg list {name:<10} {meaning}", markup=False, highlight=False)
        return
    choose("list", what, dict.fromkeys(LISTS))
    if what == "presets":  # without torch, which takes a second
        from fedlsg.simulations.settings.published.show_presets import presets_command

        return presets_command(words or "", json, console)
    if words or json:
        raise ValueError(
            f"fedlsg list {what} takes no other words and no options: they are for presets"
        )
    from fedlsg.simulations.settings.show_settings import list_command

    list_command(what, console)


def settings(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One setting, to see all of it.")
    ] = None,
) -> None:
    """Every setting that -c NAME=VALUE takes, or one whole: meaning, unit, range, default, who uses
    it.
    """
    from fedlsg.simulations.settings.show_settings import settings_command

    settings_command(name, console)
