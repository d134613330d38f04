"""The parts of a page: texts, facts, tiles, tables, figures, images, token lists, code and files.

A page is a headline and titled sections. ``template.render`` makes one HTML file of it;
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
"""The colour of a word: it is good, it is bad, or it holds for some readers only."""


class Part:
    """A part of a section."""

    @property
    def kind(self) -> str:
        """The name of its template."""
        return type(self).__name__.lower()

    @property
    def parts(self) -> Iterable["Part"]:
        """The part, and the parts in it."""
        return (self,)

    @property
    def markdown(self) -> str:
        """The part in Markdown; only texts, facts and tables have a form there."""
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
    """Two columns: names, and what is true of each; a page has ``title`` above them."""

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
    """A row of a table.

    cells: its words.
    style: a ``reference`` is what the others are compared with, ``own`` is the run itself,
        ``no-epsilon`` claims no epsilon, ``dim`` is not part of the method, ``alert`` must be
        changed, ``good`` has passed.
    group: the name of the rows that it is among; empty without.
    colour: of its line in a figure; empty without.
    values: of the cells, by which a page sorts them; empty: by the words.
    best: positions of cells that are the best of their column.
    spark: a small curve at its end, if the table shows them (``Table.spark``).
    ticked: whether its box is ticked; None: it has none. The columns of a ``chosen`` table follow
        these boxes.
    """

    cells: tuple[str, ...]
    style: RowKind = ""
    group: str = ""
    colour: str = ""
    values: tuple[float | None, ...] = ()
    best: frozenset[int] = frozenset()
    spark: tuple[float, ...] = ()
    ticked: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Table(Part):
    """A table of words, which a page can sort by any column, and filter.

    columns: their headings.
    title, note: above the table, and below it.
    left: positions of columns of words, which are aligned on the left and may be folded. Numbers
        are on the right.
    optional: positions of columns that a narrow terminal leaves out, in this order. A page has them
        all.
    chosen: a page shows only columns whose row of the table before has a ticked box.
    spark: the heading of the small curves of its rows, which only pages show; empty: none.
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
        """Whether the table is wider than a phone, which then shows each row as a card."""
        heads = [f"{name} ↕" for name in self.columns]  # a page adds the arrow to sort by it
        columns = zip(heads, *(row.cells for row in self.rows), strict=True)
        longest = sum(max(map(len, column)) for column in columns)
        return len(heads) > 2 and longest + 2 * len(heads) > PHONE

    @property
    def markdown(self) -> str:
        """Title, columns and rows in Markdown, and an empty line."""
        cells = (self.columns, *(row.cells for row in self.rows))
        head, *rows = (f"| {' | '.join(map(cell_text, row))} |" for row in cells)
        title = [f"## {self.title}\n"] if self.title else []
        return "\n".join([*title, head, "|" + "---|" * len(self.columns), *rows]) + "\n"


PHONE = 50
"""Letters that fit next to each other on a phone."""


def cell_text(text: str) -> str:
    """Words for a cell of Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")


@dataclass(frozen=True, kw_only=True)
class Picture(Part):
    """An image on a light ground, as a data URI, with its width in CSS pixels and its caption."""

    uri: str
    width: int
    caption: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of a figure.

    svg: the inside of its SVG.
    size: (width, height) in CSS pixels.
    title: above it.
    words: what it shows, for readers who cannot see it.
    legend: of this panel only; empty if the figure has one.
    """

    svg: str
    size: tuple[int, int]
    title: str
    words: str
    legend: tuple[Series, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Drawing(Part):
    """A figure: panels with one caption, next to each other if there is room.

    legend: one for all panels; empty if each has its own.
    columns: the most panels in a row.
    data: the charts of the panels, for the page's script, as ``script_json``.
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
    """Rows of images that belong together, in named columns; ``side``: CSS pixels of an image."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Shot, ...], ...]
    caption: str = ""
    side: int = 180


@dataclass(frozen=True, kw_only=True)
class Versions(Part):
    """Cards next to each other, each with an image and, below it, versions of the image.

    columns: the name of the image, then the names of the versions.
    side: the most CSS pixels of an image.
    """

    columns: tuple[str, ...]
    cards: tuple[tuple[Shot, ...], ...]
    side: int = 180


@dataclass(frozen=True, kw_only=True)
class Slides(Part):
    """Lists of parts, of which a slider over ``name`` shows one; all are shown without scripts."""

    name: str
    slides: tuple[tuple[str, tuple[Part, ...]], ...]

    @property
    def parts(self) -> Iterable[Part]:
        return chain((self,), *(parts for _, parts in self.slides))


@dataclass(frozen=True, kw_only=True)
class TokenLine:
    """Tokens, each with a mark that rates it; ``first``: a new text begins."""

    name: str
    tokens: tuple[tuple[str, Mark], ...]
    first: bool = False


@dataclass(frozen=True, kw_only=True)
class TokenLines(Part):
    """Texts next to the tokens that were recovered, and the caption below."""

    lines: tuple[TokenLine, ...]
    caption: str


@dataclass(frozen=True, kw_only=True)
class Code(Part):
    """A command, a file or numbers in a fixed-width font; ``note``: words before it."""

    text: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Download:
    """A file that a reader may save.

    content: the file's, in the page; None: only the file next to the page has it.
    says: what it is.
    """

    name: str
    content: bytes | None
    says: str


SMALL = 150_000
"""The most bytes of a file that a page holds."""


def download(name: str, content: bytes, says: str) -> Download:
    """A file that is also next to the page; the page holds it if it is small."""
    if len(content) <= SMALL:
        return Download(name=name, content=content, says=says)
    return Download(name=name, content=None, says=f"{says} (next to this page)")


def data_section(*files: Download) -> "Section":
    """The last section of a page: its numbers as files."""
    return Section(title="Data", parts=(Downloads(files=files),))


@dataclass(frozen=True, kw_only=True)
class Downloads(Part):
    """Files that a reader may save."""

    files: tuple[Download, ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    """Parts under a title; ``folded``: they are shown when the title is clicked.

    Without a title they follow the section before.
    """

    title: str = ""
    parts: tuple[Part, ...]
    folded: bool = False


def sections(*given: tuple[str, Iterable[Part]] | Section) -> tuple[Section, ...]:
    """Sections, which may be given as (title, parts); those without parts are left out."""
    made = (
        each if isinstance(each, Section) else Section(title=each[0], parts=tuple(each[1]))
        for each in given
    )
    return tuple(section for section in made if section.parts)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole page.

    title: what it is about.
    lead: one line about what was measured.
    kind: the command that made it.
    headline: the result in one sentence.
    badge: a word that nobody may overlook, and its colour.
    warnings: sentences that nobody may overlook.
    cautions: sentences about limits of the result.
    advice: sentences about what a reader may do.
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
    """The same values, with ``not_finite(number)`` in place of NaN and infinity."""
    if isinstance(value, Mapping):
        return {str(key): finite(item, not_finite) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item, not_finite) for item in value]
    return not_finite(value) if isinstance(value, float) and not math.isfinite(value) else value


def script_json(value: Any) -> str:
    """JSON that stays data inside of a script element, for any strings."""
    text = json.dumps(finite(value), separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
