"""Tables on a terminal: they fit, lose optional columns first, and fold names last."""

import io

import pytest
from rich.console import Console

from simulations.report.sections import Row, Table
from simulations.report.tables import fits, print_table

TABLE = Table(
    title="What [bold]was[/bold] measured",
    columns=("attack", "accuracy, %", "seconds"),
    rows=(
        Row(cells=("inverting-gradients", "11.0 [10.0, 12.0]", "4.0"), group="a"),
        Row(cells=("map [1]", "12.0 [11.0, 13.0]", "0.4"), group="b"),
    ),
    note="A [red]note[/red].",
    optional=(2,),
)


def printed(table: Table, width: int) -> str:
    console = Console(record=True, width=width, file=io.StringIO())
    print_table(table, console)
    return console.export_text()


@pytest.mark.parametrize("width", [24, 40, 45, 60, 120])
def test_it_fits_and_nothing_is_cut(width):
    text = printed(TABLE, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert "[bold]was[/bold]" in text
    assert "[red]note[/red]" in text
    assert "12.0" in text


def test_an_optional_column_goes_first_then_names_fold():
    assert fits(TABLE, 60)
    assert not fits(TABLE, 40)
    assert "seconds" in printed(TABLE, 60)
    without = printed(TABLE, 40)
    assert "seconds" not in without
    assert "inverting-gradients" in without
    assert "inverting-gradients" not in printed(TABLE, 24)


def test_groups_are_apart():
    lines = printed(TABLE, 60).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("inverting"))
    assert lines[first + 1].strip() == ""
    assert lines[first + 2].startswith("map [1]")
