"""The headline of a run says what its numbers support, and what weakens it."""

import math
from dataclasses import replace
from typing import Any

import pytest

from simulations.report.words import WITHOUT, epsilon_words, fewer_bytes, run_headline
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


def test_held_out_and_public_rows_are_named():
    held_out = said(result(0.931, settings={"holdout": 0.1}))
    assert held_out.startswith("93.1 % accuracy on held-out training rows at epsilon")
    assert "test accuracy" not in held_out
    assert held_out.endswith("No epsilon covers this accuracy: it was computed from private rows without noise.")
    assert said(result(0.931, settings={"public_rows": "synthetic"})).endswith("The clients held public rows.")


def test_a_run_that_is_not_finished_claims_nothing():
    run = replace(result(0.8), status="interrupted", summary={})
    assert run_headline(run) == "Not finished: 2 of 2 rounds. 80.0 % test accuracy so far."
    failed = run_headline(result(None))
    assert failed == "Failed: 0 of 2 rounds."


def test_runs_of_older_versions_have_a_headline():
    run = result(0.931, epsilon=8.0)
    old = {name: value for name, value in run.summary.items() if name not in ("trust", "reproducible", "chance")}
    assert run_headline(replace(run, summary=old)) == said()


def test_nothing_is_said_of_bytes_that_nobody_counted():
    assert fewer_bytes(None) == fewer_bytes(0.0) == ""


def test_epsilon_is_never_rounded_down():
    assert "at epsilon 4.735 (delta" in said(epsilon_max=4.734214)
    assert "at epsilon 0.001 (delta" in said(epsilon_max=0.0004)
    assert [epsilon_words(value) for value in (8.0, 1.1, 7.9996, 0.0, 1e-30, math.inf)] == [
        "8.000", "1.100", "8.000", "0.000", "0.001", "inf",
    ]  # fmt: skip


def test_a_run_that_was_stopped_says_after_how_many_rounds():
    stopped = replace(result(0.931, epsilon=8.0), reason="early stopping: enough")
    assert "Stopped early, after 1 of 2 rounds." in said(stopped, rounds=1)
    assert "Stopped" not in said()
