"""The settings of a page: by theme, what differs from the defaults first, and what is really sent."""

from dataclasses import replace

from simulations.report.facts import settings_section, values_line
from simulations.report.page import Facts, Section
from tests.simulations.support.compare_cases import result


def groups(section: Section) -> dict[str, dict[str, str]]:
    """Rows by theme."""
    return {part.title: dict(part.rows) for part in section.parts if isinstance(part, Facts)}


def test_a_secure_sum_shows_the_integers_that_are_sent():
    run = result(0.8, settings={"trust": "secure", "codec": "float32"})
    for codec, words in (
        ({"name": "secure-sum", "bits": 11}, "of 11 bits each"),
        ({}, "of as many bits as the sum needs"),
    ):
        secure = replace(run, summary={**run.summary, "trust": "secure", "codec": codec})
        shown = groups(settings_section(secure, {"trust": "secure", "codec": "float32"}))
        assert shown["Messages and records"]["codec"].startswith("secure-sum: packed integers")
        assert words in shown["Messages and records"]["codec"]
        assert words in values_line(secure.summary)
    plain = groups(settings_section(result(0.8), {"codec": "int8"}))
    assert plain["Messages and records"]["codec"] == "int8"
