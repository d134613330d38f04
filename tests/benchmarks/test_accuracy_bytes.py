"""The README's figure shows the numbers of the pages of results."""

import pytest

from benchmarks.accuracy.accuracy_bytes import SHADES, SOURCES, numbers, read
from tests.places import REPOSITORY


@pytest.mark.parametrize("ending", SHADES)
def test_the_figure_holds_every_number_of_its_tables(ending):
    points = [point for source in SOURCES for point in read(source.read_text())]
    figure = (REPOSITORY / "docs" / f"accuracy-bytes{ending}.svg").read_text()
    assert numbers(points) in figure, "draw it again: python -m benchmarks.accuracy.accuracy_bytes"
