"""docs/troubleshooting.md has the errors that fedlsg prints today."""

import pytest

from docs._sphinx.troubleshooting import FILE, page

AGAIN = "write it again: python -m docs._sphinx.troubleshooting"


@pytest.fixture(autouse=True)
def without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDLSG_DATA", raising=False)


@pytest.mark.slow
def test_the_page_has_the_errors_of_today():
    assert FILE.read_text() == page(), AGAIN
