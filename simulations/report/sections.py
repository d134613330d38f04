"""What a page consists of: texts, facts, tables, pictures, token lists and code, in titled sections.

``page.render`` makes HTML of them, ``tables.terminal_table`` shows a table on a terminal: both say the same words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

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
    """Two columns: a name and what is true of it."""

    kind: ClassVar[str] = "facts"
    rows: tuple[tuple[str, str], ...]


def facts_of(values: Mapping[str, object]) -> Facts:
    """The items of a mapping as facts."""
    return Facts(rows=tuple((name, str(value)) for name, value in values.items()))


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


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image as a data URI, ``width`` in CSS pixels, and the caption below it."""

    kind: ClassVar[str] = "picture"
    uri: str
    width: int
    caption: str


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


Part = Text | Facts | Table | Picture | TokenLines | Code


@dataclass(frozen=True, kw_only=True)
class Section:
    """Parts under a title; without a title they follow what is before."""

    title: str = ""
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole page: what it is about, one line on what was measured, what nobody may overlook, and the sections."""

    title: str
    lead: str
    warnings: tuple[str, ...] = ()
    sections: tuple[Section, ...]
