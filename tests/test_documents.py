"""Every path, module and link that a document names exists: a renamed file cannot leave a document
behind.
"""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import REPOSITORY

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
PLACEHOLDER = re.compile(r"@@\w+@@")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FOLDERS = ("fedlsg", "strategies", "simulations", "benchmarks", "tests", "docs")
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w/?")
MODULE = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS[:4])})(?:\.\w+)+(?![\w/])")
NO_MODULES = ("fedlsg.workloads", "fedlsg.methods", "fedlsg.settings")
"""Entry point groups, and a record of messages."""
WRITTEN_BY_COMMANDS = re.compile(r"--(?:out|json) ([^\s`]+)")


def problems(text: str, folder: Path) -> list[str]:
    """What the Markdown ``text`` of a file in ``folder`` names and the repository lacks, and what
    nobody filled in.
    """
    return [
        *missing_links(text, folder),
        *missing_paths(text),
        *missing_modules(text),
        *PLACEHOLDER.findall(text),
    ]


def missing_links(text: str, folder: Path) -> Iterator[str]:
    """Relative links to files that do not exist, or to headings that their file does not have."""
    for link in LINK.findall(text):
        name, _, anchor = link.partition("#")
        target = (folder / name).resolve()
        if "://" not in link and not leads_to(text if not name else target, anchor):
            yield link


def leads_to(target: Path | str, anchor: str) -> bool:
    """Whether the target (a path, or the text of the document itself) exists and has that heading,
    if one is named.
    """
    if isinstance(target, Path) and not target.exists():
        return False
    return not anchor or anchor in anchors(
        target if isinstance(target, str) else target.read_text()
    )


def anchors(text: str) -> set[str]:
    """Names of the headings, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_paths(text: str) -> Iterator[str]:
    """Paths from the repository's root that do not exist, but for the files that a command is told
    to write.
    """
    written = set(WRITTEN_BY_COMMANDS.findall(text))
    for path in PATH.findall(text):
        if path not in written and not (REPOSITORY / path).exists():
            yield path


def missing_modules(text: str) -> Iterator[str]:
    """``package.module`` or ``package.module.name`` within code marks, or after ``python -m``, that
    cannot be found.
    """
    code = " ".join(
        [*CODE.findall(text), *re.findall(r"^(?: {4}|from |import ).+$", text, re.MULTILINE)]
    )
    for name in MODULE.findall(re.sub(PATH, "", code)):
        if name not in NO_MODULES and not exists(name):
            yield name


def exists(name: str) -> bool:
    """Whether ``name`` is a module or an attribute of one."""
    parent, _, last = name.rpartition(".")
    try:
        if importlib.util.find_spec(name) is not None:
            return True
    except ModuleNotFoundError:  # the parent is missing, or is a module and no package
        pass
    try:
        return hasattr(importlib.import_module(parent), last)
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_what_a_document_names_exists(document):
    assert problems(document.read_text(), document.parent) == []


def prose(file: Path) -> str:
    """What a file says to readers: the docstrings of a module, the comments of another file."""
    if file.suffix != ".py":
        return "\n".join(re.findall(r"# .*", file.read_text()))
    return "\n".join(docstrings(ast.parse(file.read_text())))


def docstrings(node: ast.AST) -> Iterator[str]:
    """Those of a module, and of the classes and functions that its blocks define."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield ast.get_docstring(node) or ""
    for block in ("body", "orelse", "finalbody", "handlers"):
        inside = getattr(node, block, ())
        for statement in inside if isinstance(inside, list) else ():
            yield from docstrings(statement)


def test_what_docstrings_and_requirements_name_exists():
    code = [file for folder in FOLDERS for file in REPOSITORY.glob(f"{folder}/**/*.py")]
    for file in [*REPOSITORY.glob("requirements*.txt"), REPOSITORY / "pyproject.toml", *code]:
        said = prose(file)
        assert [file, *missing_paths(said), *missing_modules(said)] == [file]
