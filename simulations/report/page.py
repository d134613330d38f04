"""What a page consists of, and the one builder of pages: texts, facts, tables, figures, token lists, code and files.

A page is a headline and titled sections. ``render`` makes one HTML file of it, readable on a screen, a phone and paper,
light and dark; ``terminal.print_table`` shows its tables on a terminal in the same words.
"""

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, ClassVar, Literal

from simulations.report.template import CSS, TEMPLATE

SECTIONS = 3
"""Titled sections from which on a page has a list of them at its top."""
MANY = 7
"""Columns from which on a table may be wider than the text."""
KINDS = {".csv": "text/csv", ".json": "application/json", ".md": "text/markdown", ".toml": "application/toml"}
TextKind = Literal["plain", "note", "warning", "verdict"]
RowKind = Literal["", "reference", "own", "no-epsilon", "dim", "alert"]
Mark = Literal["", "moved", "wrong"]


@dataclass(frozen=True, kw_only=True)
class Text:
    """One paragraph. A note is small, a warning has a red bar, a verdict is bold."""

    kind: ClassVar[str] = "text"
    words: str
    style: TextKind = "plain"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Two columns: a name and what is true of it. On a page ``title`` is above them."""

    kind: ClassVar[str] = "facts"
    rows: tuple[tuple[str, str], ...]
    title: str = ""


def facts_of(values: Mapping[str, object], title: str = "") -> Facts:
    """The items of a mapping as facts."""
    return Facts(rows=tuple((name, str(value)) for name, value in values.items()), title=title)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Cells of a table. Rows of one ``group`` follow its name; ``colour`` is that of the row's line in a figure.

    style: a ``reference`` is what the others are compared with, ``own`` is the run itself, ``no-epsilon`` claims no
    epsilon, ``dim`` is not part of the method, ``alert`` must be changed.
    """

    cells: tuple[str, ...]
    style: RowKind = ""
    group: str = ""
    colour: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns of text. ``note`` explains them below the table.

    left: positions of columns of words, which are aligned on the left and may be folded; numbers are on the right.
    optional: positions of columns that a narrow terminal leaves out, in this order; a page has them all.
    """

    kind: ClassVar[str] = "table"
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    title: str = ""
    note: str = ""
    left: tuple[int, ...] = (0,)
    optional: tuple[int, ...] = ()

    @property
    def markdown(self) -> str:
        """Columns and rows in Markdown, and an empty line."""
        lines = [" | ".join(cell_text(text) for text in row) for row in (self.columns, *(r.cells for r in self.rows))]
        head, *rows = (f"| {line} |" for line in lines)
        return "\n".join([head, "|" + "---|" * len(self.columns), *rows]) + "\n"


def cell_text(text: str) -> str:
    """Words for a cell of Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image as a data URI, ``width`` in CSS pixels, and the caption below it. Its ground is light."""

    kind: ClassVar[str] = "picture"
    uri: str
    width: int
    caption: str


@dataclass(frozen=True, kw_only=True)
class Key:
    """One entry of a legend: a line with a marker, or a ``patch`` of colour.

    colour: as CSS; empty for no line. dashes: of the line, as SVG has them. marker: path of its outline around (0, 0),
    as SVG has it; ``filled``: or hollow.
    """

    name: str
    colour: str
    dashes: str = ""
    line: bool = True
    marker: str = ""
    filled: bool = True
    patch: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of a figure: the SVG of ``size`` (width, height in CSS pixels), and in words what its lines show.

    legend: of this panel only.
    """

    svg: str
    size: tuple[int, int]
    title: str
    words: str
    legend: tuple[Key, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Panels with one caption and, if they share one, one legend: next to each other where there is room.

    columns: panels in a row at most.
    """

    kind: ClassVar[str] = "drawing"
    panels: tuple[Panel, ...]
    legend: tuple[Key, ...] = ()
    caption: str
    columns: int = 2


@dataclass(frozen=True, kw_only=True)
class TokenLine:
    """Tokens, each with what is thought of it. ``first``: a new text begins."""

    name: str
    tokens: tuple[tuple[str, Mark], ...]
    first: bool = False


@dataclass(frozen=True, kw_only=True)
class TokenLines:
    """Texts next to what was recovered of them, and the caption below."""

    kind: ClassVar[str] = "tokens"
    lines: tuple[TokenLine, ...]
    caption: str


@dataclass(frozen=True, kw_only=True)
class Code:
    """A command, a file or numbers, in a fixed-width font; ``note`` says before it what it is."""

    kind: ClassVar[str] = "code"
    text: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Download:
    """A file that a reader may save: ``content`` is in the page; None: only the file next to the page has it."""

    name: str
    content: bytes | None
    says: str


SMALL = 150_000
"""Bytes of a file up to which a page holds it."""


def download(name: str, content: bytes, says: str) -> Download:
    """A file that also is next to the page; the page holds it if it is small."""
    small = len(content) <= SMALL
    return Download(
        name=name, content=content if small else None, says=says + ("" if small else " (next to this page)")
    )


def data_section(*files: Download) -> "Section":
    """The last section of a page: its numbers as files."""
    return Section(title="Data", parts=(Downloads(files=files),))


@dataclass(frozen=True, kw_only=True)
class Downloads:
    """Files that a reader may save."""

    kind: ClassVar[str] = "downloads"
    files: tuple[Download, ...]


Part = Text | Facts | Table | Picture | TokenLines | Code | Drawing | Downloads


@dataclass(frozen=True, kw_only=True)
class Section:
    """Parts under a title; without a title they follow what is before. ``folded``: shown when the title is clicked."""

    title: str = ""
    parts: tuple[Part, ...]
    folded: bool = False


def sections(*given: tuple[str, Iterable[Part]] | Section) -> tuple[Section, ...]:
    """Sections, also from titles and their parts; one without parts is left out."""
    found = (one if isinstance(one, Section) else Section(title=one[0], parts=tuple(one[1])) for one in given)
    return tuple(section for section in found if section.parts)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole page: what it is about, one line on what was measured, what nobody may overlook, and the sections.

    kind: what made it. headline: the result in one sentence, from the results.
    """

    title: str
    lead: str
    kind: str = ""
    headline: str = ""
    warnings: tuple[str, ...] = ()
    sections: tuple[Section, ...]


def render(page: Page) -> str:
    """The page as HTML. Guarantee: text stays text, whatever it holds, and a browser requests nothing.

    Jinja escapes every value. Only the style sheet and the SVG of a panel, whose text matplotlib escaped, are inserted
    as they are.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE).render(page=page, css=CSS, listed=SECTIONS, many=MANY, target=target)


def target(file: Download) -> str:
    """Where the link of a file leads: to the data in the page, or to the file next to it."""
    if file.content is None:
        return file.name
    kind = KINDS.get(PurePath(file.name).suffix, "text/plain")
    return f"data:{kind};base64,{base64.b64encode(file.content).decode()}"


def json_text(value: Any, *, indent: int = 1, not_finite: Callable[[float], str | None] = lambda number: None) -> bytes:
    """The bytes of a JSON file; ``not_finite`` replaces NaN and infinity."""
    return (json.dumps(finite(value, not_finite), indent=indent) + "\n").encode()


def finite(value: Any, not_finite: Callable[[float], str | None] = lambda number: None) -> Any:
    """The same values with ``not_finite`` of those that JSON has no number for."""
    if isinstance(value, Mapping):
        return {str(key): finite(item, not_finite) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item, not_finite) for item in value]
    return not_finite(value) if isinstance(value, float) and not math.isfinite(value) else value
