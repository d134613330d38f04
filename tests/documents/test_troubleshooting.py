"""docs/troubleshooting.md has the errors that fedlsg prints today."""

import pytest

from docs._sphinx import troubleshooting
from docs._sphinx.troubleshooting import CASES, FILE, Case, page

AGAIN = "write it again: python -m docs._sphinx.troubleshooting"


@pytest.fixture(autouse=True)
def without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDLSG_DATA", raising=False)


def test_the_page_has_the_errors_of_today():
    assert FILE.read_text() == page(), AGAIN


def test_negative_control_a_command_that_works_is_noticed(monkeypatch):
    monkeypatch.setattr(troubleshooting, "CASES", {"a": [Case("list codecs", "unknown", "", "")]})
    monkeypatch.setattr(troubleshooting, "prepare", lambda folder: None)
    with pytest.raises(ValueError, match="expected an error with 'unknown'"):
        page()


def test_each_case_has_a_cause_and_a_fix():
    cases = [case for some in CASES.values() for case in some]
    assert all(case.cause and case.fix for case in cases)
    assert len(cases) >= 20
