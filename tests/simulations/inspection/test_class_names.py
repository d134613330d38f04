"""A partition says classes as the data call them: folders, labels; numbers where they have no
name.
"""

from dataclasses import replace

import numpy as np
import pytest

from fedlsg.simulations.inspection.partition_view import charts, rows_of, table
from fedlsg.simulations.planning.advice.balance import Balance

PLAIN = Balance(
    title="t",
    counts=np.array([[3, 1], [0, 4]]),
    sizes=np.array([4, 4]),
    rates=np.array([0.5, 0.5]),
    expected_batch=2.0,
    delta=1e-5,
    names=("north", "south"),
)
NAMED = replace(PLAIN, classes=("cat", "do\x1bg"))


@pytest.mark.parametrize(
    ("balance", "tops", "series", "columns"),
    [
        (PLAIN, ["0: 75 %", "1: 100 %"], ["class 0", "class 1"], ["class_0", "class_1"]),
        (NAMED, ["cat: 75 %", "do\\x1bg: 100 %"], ["cat", "do\\x1bg"], ["class_cat"]),
    ],
)
def test_classes_and_clients_have_their_names(balance, tops, series, columns):
    shown = table(balance, counted=True)
    place = shown.columns.index("top class")
    assert [row.cells[place] for row in shown.rows] == tops
    assert [row.cells[0] for row in shown.rows] == ["north", "south"]
    (chart,) = charts(balance)
    assert [one.name for one in chart.series] == series
    assert {*columns} <= rows_of(balance)[0].keys()


def test_a_heading_names_few_classes():
    assert table(NAMED, counted=True).columns[-1] == "examples by class (cat, do\\x1bg)"
    many = replace(PLAIN, classes=("a" * 30, "b" * 30))
    assert table(many, counted=True).columns[-1] == "examples by class"
