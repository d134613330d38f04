"""Pages and JSON that commands write: what a page consists of, the one template of all pages, and JSON of numbers.

A page is a headline and sections of texts, facts, tables, figures, token lists, code and files. ``render`` makes one
HTML file of it, readable on a screen, a phone and paper, light and dark; ``terminal.terminal_table`` shows its tables
on a terminal in the same words. ``parts`` has what a page consists of, ``template`` the HTML, ``style`` the style
sheet, ``colours`` every colour of pages and figures.
"""

from simulations.report.page.json_text import finite, json_text
from simulations.report.page.parts import (
    Code,
    Download,
    Downloads,
    Drawing,
    Facts,
    Key,
    Mark,
    Page,
    Panel,
    Part,
    Picture,
    Row,
    RowKind,
    Section,
    Table,
    Text,
    TextKind,
    TokenLine,
    TokenLines,
    data_section,
    download,
    facts_of,
)
from simulations.report.page.template import cell, render

__all__ = [
    "Code", "Download", "Downloads", "Drawing", "Facts", "Key", "Mark", "Page", "Panel", "Part", "Picture", "Row",
    "RowKind", "Section", "Table", "Text", "TextKind", "TokenLine", "TokenLines", "cell", "data_section", "download",
    "facts_of", "finite", "json_text", "render",
]  # fmt: skip
