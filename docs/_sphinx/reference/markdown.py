"""Tables, and docstrings as Markdown."""

import inspect
import re
from collections.abc import Iterable

NOTE = "Made from the code by `python -m docs._sphinx.reference`; do not edit."


def page(title: str, *parts: str) -> str:
    """A page with its title, the note, and its parts."""
    return "\n\n".join([f"# {title}", NOTE, *parts]) + "\n"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    cells = [list(head), *map(list, rows)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:]])


def docstring(subject: object) -> str:
    """The docstring of an object as Markdown: fields (``name: text``) become a list, indented
    blocks become code.
    """
    lines = (inspect.getdoc(subject) or "").replace("``", "`").splitlines()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(_lines(lines))).strip()


def _lines(lines: list[str]) -> Iterable[str]:
    inside = False  # of the list of fields: lines that go on are indented
    for line in lines:
        # an aligned list of arguments
        line = re.sub(r"^    (\w+(?:, \w+)*)  +(?=\S)", r"\1: ", line)
        field = re.match(r"([a-z_]\w*(?:, [a-z_]\w*)*): (?=\S)|(Raises|Returns|Yields):$", line)
        if field and (field[1] or "").lower() not in ("source", "guarantee", "note"):
            yield from ([] if inside else [""])
            inside = True
            yield f"- **{field[1] or field[2]}**: {line[field.end() :]}".rstrip()
        elif inside and line.startswith(" "):
            yield f"  {line.strip()}"
        else:
            if inside and line:
                yield ""
            inside = inside and not line
            yield line if line != "Arguments" else ""
