"""What a page says of a run: only what its numbers support, whom epsilon protects against, the
settings.
"""

import math
from dataclasses import replace
from typing import Any

import pytest

from fedlsg.simulations.report.pages.facts import TRUST, epsilon_section, trust_words
from fedlsg.simulations.report.pages.page import Facts, Section, Text
from fedlsg.simulations.report.pages.settings_section import settings_section, values_line
from fedlsg.simulations.report.words import WITHOUT, epsilon_words, run_headline, wire_words
from fedlsg.simulations.storage.results import Result, read_run
from tests.simulations.support.compare_cases import result
from tests.simulations.support.runs import run_local

SUMS = {"clients": 5, "min_survivors": 4, "colluders": 1, "contributors": 3}


def said(run: Result | None = None, **summary: Any) -> str:
    """The headline of a good run, with other values in its summary."""
    run = result(0.931, epsilon=8.0) if run is None else run
    return run_headline(replace(run, summary={**run.summary, **summary}))


def test_a_private_run_by_hand():
    assert (
        said()
        == "93.1 % test accuracy at epsilon 7.999 (delta 1e-05), with 4.0x fewer uplink bytes than "
        "dense updates."
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"private": False, "epsilon_max": "inf"}, f"93.1 % test accuracy {WITHOUT}, with"),
        (
            {"private": False, "reproducible": True},
            "in test mode: the noise is reproducible, so nothing is private",
        ),
        (
            {"trust": "secure", "secure_sum": SUMS},
            "at epsilon 7.999 for secure sums of the clients' payloads (delta",
        ),
        (
            {
                "trust": "secure",
                "secure_sum": SUMS,
                "epsilon_by_reader": {"outside": 7.0, "participant": 7.999},
            },
            "at epsilon 7.999 against one participant for secure sums of the clients' payloads "
            "(delta",
        ),
        (
            {"trust": "aggregate"},
            "for the sum of all payloads, if an ideal secure aggregation is assumed (delta",
        ),
        ({"uplink_bytes": 8000}, "with 2.0x more uplink bytes than dense updates."),
        ({"uplink_bytes": 4000}, "with as many uplink bytes as dense updates."),
        ({"uplink_bytes": 0}, "(delta 1e-05)."),
        ({"accuracy": 0.12}, "12.0 % test accuracy at epsilon 7.999"),
        ({"accuracy": 0.12}, "This is not better than guessing (10.0 %) by three standard errors."),
        ({"accuracy": None, "chance": None}, "Test loss 0.5 at epsilon 7.999"),
    ],
)
def test_what_the_run_does_not_support_is_not_said(changes, words):
    assert words in said(**changes)


@pytest.mark.parametrize("changes", [{"private": False}, {"private": False, "reproducible": True}])
def test_no_epsilon_without_privacy(changes):
    assert "epsilon" not in said(**changes)


def test_epsilon_is_never_rounded_down():
    assert "at epsilon 4.735 (delta" in said(epsilon_max=4.734214)
    assert "at epsilon 0.001 (delta" in said(epsilon_max=0.0004)
    assert [epsilon_words(value) for value in (8.0, 1.1, 7.9996, 0.0, 1e-30, math.inf)] == [
        "8.000",
        "1.100",
        "8.000",
        "0.000",
        "0.001",
        "inf",
    ]


@pytest.mark.parametrize(
    ("used", "said"),
    [
        (["client"], []),
        (["secure"], ["secure"]),
        (["aggregate", "aggregate"], ["aggregate"]),
        (["secure", "client", "aggregate"], ["client", "secure", "aggregate"]),
    ],
)
def test_whom_epsilon_protects_against(used, said):
    assert trust_words(used) == [TRUST[trust] for trust in said]


@pytest.mark.slow
def test_a_report_of_a_secure_sum_says_it(tmp_path):
    run = run_local(tmp_path / "run", trust="secure", clients=4)
    texts = [
        part.words for part in epsilon_section([read_run(run.path)]).parts if isinstance(part, Text)
    ]
    assert TRUST["secure"] in texts


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


def test_the_ratio_on_the_wire_is_that_of_equal_framing():
    """235 kB for 9.62 MB are 40.9x of payload, and 28x with 109 kB of framing in both."""
    sent = {"uplink_bytes": 235_360, "uplink_bytes_wire": 344_320, "uplink_bytes_dense": 9_620_000}
    assert wire_words(sent, "uplink") == (
        "; 344.32 kB on the wire, 28.3x smaller than dense updates there"
    )
    unframed = wire_words(sent | {"uplink_bytes_wire": 235_360}, "uplink")
    assert "40.9x smaller" in unframed  # control
    dense = {name: 9_620_000 for name in sent} | {"uplink_bytes_wire": 9_770_000}
    assert wire_words(dense, "uplink") == "; 9.77 MB on the wire"
    assert wire_words({}, "uplink") == ""
    assert wire_words({"uplink_bytes_wire": 1000}, "uplink") == "; 1.00 kB on the wire"
