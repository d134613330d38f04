"""The page of the papers says of every row what state it is in, and names presets that there are."""

import re

from fedlsg.simulations.settings.published import find, presets
from tests.places import REPOSITORY

PAGE = (REPOSITORY / "docs" / "papers.md").read_text()
ROWS = PAGE.split("## Row by row")[1].split("\n## ")[0]
NAME = re.compile(r"`(?:fedlsg run --preset )?([a-z][\w.-]*-(?:eps[\d.]+|nonprivate)[\w.-]*)")
STATES = ("runs", "small", "missing")


def rows(text: str) -> list[list[str]]:
    cells = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in cells if row[0].strip() != "in the paper"]


def stateless(text: str) -> list[str]:
    """Rows with a command that do not say how far it goes."""
    return [
        name
        for name, command, state in rows(text)
        if command not in ("theory", "drawing") and not state.startswith(STATES)
    ]


def test_every_row_says_its_state():
    assert stateless(ROWS) == []
    assert len(rows(ROWS)) > 120
    assert stateless("| Table 9 | `fedlsg run` | soon |\n") == ["Table 9"]  # control


def test_presets_of_the_rows_exist_and_every_table_has_some():
    named = [find(name) for name in NAME.findall(ROWS)]
    of_tables = {p.source for p in presets() if "Table" in p.where and "De et al." not in p.paper}
    assert of_tables <= {preset.source for preset in named}
    assert len(named) > 250
