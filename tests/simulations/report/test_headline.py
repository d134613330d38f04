"""The headline of a run says what its numbers support, and what weakens it."""

import math
from dataclasses import replace
from typing import Any

import pytest

from simulations.report.words import WITHOUT, epsilon_words, run_headline
from simulations.rundir.results import Result
from tests.simulations.support.compare_cases import result

SUMS = {"clients": 5, "min_survivors": 4, "colluders": 1, "contributors": 3}


def said(run: Result | None = None, **summary: Any) -> str:
    """The headline of a good run, with other values in its summary."""
    run = result(0.931, epsilon=8.0) if run is None else run
    return run_headline(replace(run, summary={**run.summary, **summary}))


def test_a_private_run_by_hand():
    assert (
        said()
        == "93.1 % test accuracy at epsilon 7.999 (delta 1e-05), with 4.0x fewer uplink bytes than dense updates."
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"private": False, "epsilon_max": "inf"}, f"93.1 % test accuracy {WITHOUT}, with"),
        ({"private": False, "reproducible": True}, "in test mode: the noise is reproducible, so nothing is private"),
        ({"trust": "secure", "secure_sum": SUMS}, "at epsilon 7.999 for secure sums of the clients' payloads (delta"),
        (
            {"trust": "secure", "secure_sum": SUMS, "epsilon_by_reader": {"outside": 7.0, "participant": 7.999}},
            "at epsilon 7.999 against one participant for secure sums of the clients' payloads (delta",
        ),
        ({"trust": "aggregate"}, "for the sum of all payloads, if an ideal secure aggregation is assumed (delta"),
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
        "8.000", "1.100", "8.000", "0.000", "0.001", "inf",
    ]  # fmt: skip
