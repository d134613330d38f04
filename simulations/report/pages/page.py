"""What a page consists of: texts, facts, tiles, tables, figures, images, token lists, code and
files.

A page is a headline and titled sections. ``render.render`` makes one HTML file of it;
``terminal.print_table`` shows its tables on a terminal in the same words.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from fedlsg.simulations.report.drawing.chart import Series

TextKind = Literal["plain", "note", "warning", "verdict"]
RowKind = Literal["", "reference", "own", "no-epsilon", "dim", "alert", "good"]
Mark = Literal["", "found", "moved", "wrong"]
Badge = Literal["", "good", "bad", "limited"]
"""How a word is coloured: it is good, it is bad, or it holds for some readers only."""


class Part:
    """A part of a section."""

    @property
    def kind(self) -> str:
        """The name of its template."""
        return type(self).__name__.lower()

    @property
    def parts(self) -> Iterable["Part"]:
        """It, and those in it."""
        return (self,)

    @property
    def markdown(self) -> str:
        """It in Markdown, where it has a form there: texts, facts and tables."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Text(Part):
    """One paragraph. A note is small, a warning has a red bar, a verdict is bold."""

    words: str
    style: TextKind = "plain"

    @property
    def markdown(self) -> str:
        return self.words


@dataclass(frozen=True, kw_only=True)
class Facts(Part):
    """Two columns: a name and what is true of it. On a page ``title`` is above them."""

    rows: tuple[tuple[str, str], ...]
    title: str = ""

    @property
    def markdown(self) -> str:
        return "".join(f"\n- `{name}`: {cell_text(text)}" for name, text in self.rows)


def facts_of(values: Mapping[str, object], title: str = "") -> Facts:
    """The items of a mapping as facts."""
    return Facts(rows=tuple((name, str(value)) for name, value in values.items()), title=title)


def facts_if_any(values: Mapping[str, object]) -> tuple[Facts, ...]:
    """The items as facts; nothing of an empty mapping."""
    return (facts_of(values),) if values else ()


def markdown(parts: Iterable[Part]) -> str:
    """Texts, facts and tables as a file."""
    return "\n".join(part.markdown for part in parts) + "\n"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Cells of a table. Rows of one ``group`` follow its name; ``colour`` is that of the row's line
    in a figure.

    style: a ``reference`` is what the others are compared with, ``own`` is the run itself,
    ``no-epsilon`` claims no epsilon, ``dim`` is not part of the method, ``alert`` must be changed,
    ``good`` has passed.
    """

    cells: tuple[str, ...]
    style: RowKind = ""
    group: str = ""
    colour: str = ""
    values: tuple[float | None, ...] = ()
    """Of the cells, by which a page sorts them; empty: by the words."""
    best: frozenset[int] = frozenset()
    """Positions of cells that are the best of their column."""
    spark: tuple[float, ...] = ()
    """A small curve at its end, where the table has room for one (``Table.spark``)."""
    ticked: bool | None = None
    """Whether its box is ticked; None: it has none. The columns of a ``chosen`` table follow these
    boxes.
    """


@dataclass(frozen=True, kw_only=True)
class Table(Part):
    """Columns of text, which a page sorts by any of them, and filters. ``note`` explains them below
    the table.

    left: positions of columns of words, which are aligned on the left and may be folded; numbers
    are on the right.
    optional: positions of columns that a narrow terminal leaves out, in this order; a page has them
    all.
    chosen: a page shows only columns whose row of the table before has a ticked box.
    spark: the heading of the small curves of its rows, which pages alone show; empty: none.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    title: str = ""
    note: str = ""
    left: tuple[int, ...] = (0,)
    optional: tuple[int, ...] = ()
    chosen: bool = False
    spark: str = ""

    @property
    def wide(self) -> bool:
        """Whether a phone shows a row as a card: the table is wider than it."""
        cells = ([row.cells[at] for row in self.rows] for at in range(len(self.columns)))
        longest = (
            max(map(len, (f"{name} ↕", *own)))
            for name, own in zip(self.columns, cells, strict=True)
        )
        return len(self.columns) > 2 and sum(longest) + 2 * len(self.columns) > PHONE

    @property
    def markdown(self) -> str:
        """Title, columns and rows in Markdown, and an empty line."""
        lines = [
            " | ".join(cell_text(text) for text in row)
            for row in (self.columns, *(r.cells for r in self.rows))
        ]
        head, *rows = (f"| {line} |" for line in lines)
        title = [f"## {self.title}\n"] if self.title else []
        return "\n".join([*title, head, "|" + "---|" * len(self.columns), *rows]) + "\n"


PHONE = 50
"""Letters of a table that are next to each other on a phone."""


def cell_text(text: str) -> str:
    """Words for a cell of Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")


@dataclass(frozen=True, kw_only=True)
class Picture(Part):
    """An image as a data URI, ``width`` in CSS pixels, and the caption below it. Its ground is
    light.
    """

    uri: str
    width: int
    caption: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of a figure: the SVG of ``size`` (width, height in CSS pixels), and in words what
    it shows.

    legend: of this panel only.
    """

    svg: str
    size: tuple[int, int]
    title: str
    words: str
    legend: tuple[Series, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Drawing(Part):
    """Panels with one caption and, if they share one, one legend: next to each other where there is
    room.

    columns: panels in a row at most.
    data: of the panels, for the page's script, as ``script_json``.
    """

    panels: tuple[Panel, ...]
    legend: tuple[Series, ...] = ()
    caption: str
    columns: int = 2
    data: str


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One number that a reader looks for: its name, the number, and what it means below it."""

    name: str
    value: str
    note: str = ""
    style: Badge = ""


@dataclass(frozen=True, kw_only=True)
class Tiles(Part):
    """The numbers that a page is about, next to each other and larger than the rest."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True, kw_only=True)
class Meter:
    """How much of something is done or spent: ``share`` of it in 0..1, and in words."""

    name: str
    share: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Meters(Part):
    """Bars of what goes on, each with its name and its words."""

    meters: tuple[Meter, ...]


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One small image, as it is and as large as a page shows it, with the words below it."""

    uri: str
    words: str
    style: Badge = ""


@dataclass(frozen=True, kw_only=True)
class Gallery(Part):
    """Images in rows that belong together, each column under its name. ``side``: CSS pixels of an
    image.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Shot, ...], ...]
    caption: str = ""
    side: int = 180


@dataclass(frozen=True, kw_only=True)
class Versions(Part):
    """Cards, each of an image and of its versions under it, next to each other. ``columns``: the
    name of the first, then those of the versions. ``side``: CSS pixels of an image at most.
    """

    columns: tuple[str, ...]
    cards: tuple[tuple[Shot, ...], ...]
    side: int = 180


@dataclass(frozen=True, kw_only=True)
class Slides(Part):
    """Lists of parts, of which a slider over ``name`` chooses one; without scripts all of them are
    shown.
    """

    name: str
    slides: tuple[tuple[str, tuple[Part, ...]], ...]

    @property
    def parts(self) -> Iterable[Part]:
        return chain((self,), *(parts for _, parts in self.slides))


@dataclass(frozen=True, kw_only=True)
class TokenLine:
    """Tokens, each with what is thought of it. ``first``: a new text begins."""

    name: str
    tokens: tuple[tuple[str, Mark], ...]
    first: bool = False


@dataclass(frozen=True, kw_only=True)
class TokenLines(Part):
    """Texts next to what was recovered of them, and the caption below."""

    lines: tuple[TokenLine, ...]
    caption: str


@dataclass(frozen=True, kw_only=True)
class Code(Part):
    """A command, a file or numbers, in a fixed-width font; ``note`` says before it what it is."""

    text: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Download:
    """A file that a reader may save: ``content`` is in the page; None: only the file next to the
    page has it.
    """

    name: str
    content: bytes | None
    says: str


SMALL = 150_000
"""Bytes of a file up to which a page holds it."""


def download(name: str, content: bytes, says: str) -> Download:
    """A file that also is next to the page; the page holds it if it is small."""
    small = len(content) <= SMALL
    return Download(
        name=name,
        content=content if small else None,
        says=says + ("" if small else " (next to this page)"),
    )


def data_section(*files: Download) -> "Section":
    """The last section of a page: its numbers as files."""
    return Section(title="Data", parts=(Downloads(files=files),))


@dataclass(frozen=True, kw_only=True)
class Downloads(Part):
    """Files that a reader may save."""

    files: tuple[Download, ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    """Parts under a title; without a title they follow what is before. ``folded``: shown when the
    title is clicked.
    """

    title: str = ""
    parts: tuple[Part, ...]
    folded: bool = False


def sections(*given: tuple[str, Iterable[Part]] | Section) -> tuple[Section, ...]:
    """Sections, also from titles and their parts; one without parts is left out."""
    found = (
        one if isinstance(one, Section) else Section(title=one[0], parts=tuple(one[1]))
        for one in given
    )
    return tuple(section for section in found if section.parts)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole page: what it is about, one line on what was measured, what nobody may overlook, and
    the sections.

    kind: what made it.
    headline: the result in one sentence, from the results.
    badge: a word that nobody may overlook, and how it is coloured.
    cautions: what keeps a result from saying much.
    advice: what a reader may do, which is no warning.
    """

    title: str
    lead: str
    kind: str = ""
    headline: str = ""
    badge: tuple[str, Badge] = ("", "")
    warnings: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    sections: tuple[Section, ...]


def json_text(
    value: Any, *, indent: int = 1, not_finite: Callable[[float], str | None] = lambda number: None
) -> bytes:
    """The bytes of a JSON file; ``not_finite`` replaces NaN and infinity."""
    return (json.dumps(finite(value, not_finite), indent=indent) + "\n").encode()


def finite(value: Any, not_finite: Callable[[float], str | None] = lambda number: None) -> Any:
    """The same values with ``not_finite`` of those that JSON has no number for."""
    if isinstance(value, Mapping):
        return {str(key): finite(item, not_finite) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item, not_finite) for item in value]
    return not_finite(value) if isinstance(value, float) and not math.isfinite(value) else value


def script_json(value: Any) -> str:
    """JSON that stays data inside of a script element, whatever its strings hold."""
    text = json.dumps(finite(value), separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
