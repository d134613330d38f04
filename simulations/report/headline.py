"""The result of a run in one sentence: what it reached, under which epsilon, for how many bytes. Only what it supports.

Every number is from summary.json. A run without privacy, in test mode or at the level of guessing says so.
"""

from collections.abc import Mapping
from typing import Any

from simulations.report.words import epsilon_words, strongest
from simulations.rundir.results import Result
from simulations.workloads.chance import beats_chance

TEST_MODE = "in test mode: the noise is reproducible, so nothing is private"
WITHOUT = "with no privacy"
SAME = 0.05
"""Ratios of bytes that are nearer to 1 than this are called equal."""


def run_headline(result: Result) -> str:
    """One or two sentences."""
    if not result.done:
        return _unfinished(result)
    bytes_said = fewer_bytes(result.saved)
    sentence = f"{reached(result)} {privacy(result.summary)}{f', {bytes_said}' if bytes_said else ''}."
    return sentence + "".join(f" {more}" for more in _limits(result))


def _unfinished(result: Result) -> str:
    planned = result.settings.get("rounds", "?")
    state = "Failed" if result.status == "failed" else "Not finished"
    so_far = "" if result.accuracy is None else f" {100 * result.accuracy:.1f} % {_measured_on(result)} so far."
    return f"{state}: {len(result.rows)} of {planned} rounds.{so_far}"


def reached(result: Result) -> str:
    """Accuracy, or the loss where there is none, and on which rows."""
    if result.accuracy is None:
        return f"Test loss {float(result.summary['loss']):.3g}"
    return f"{100 * result.accuracy:.1f} % {_measured_on(result)}"


def _measured_on(result: Result) -> str:
    return "accuracy on held-out training rows" if result.held_out else "test accuracy"


def privacy(summary: Mapping[str, Any]) -> str:
    """``at epsilon 8.000 (delta 1e-05)``, of what; or that there is none."""
    if not summary["private"]:
        return TEST_MODE if summary.get("reproducible") else WITHOUT
    of = {
        "secure": f"{strongest(summary)} for secure sums of the clients' payloads",
        "aggregate": f"{strongest(summary)} for the sum of all payloads, if an ideal secure aggregation is assumed",
        "server": " for the weights, at a trusted server",
    }
    trust = of.get(str(summary.get("trust", "client")), "")
    if summary.get("unit", "example") == "client":
        trust = f" at client level{trust}"
    return f"at epsilon {epsilon_words(float(summary['epsilon_max']))}{trust} (delta {summary['delta']:g})"


def fewer_bytes(saved: float | None) -> str:
    """How the bytes that clients sent compare with dense updates; empty if none were sent."""
    if saved is None or not saved > 0:
        return ""
    if abs(saved - 1) < SAME:
        return "with as many uplink bytes as dense updates"
    return f"with {saved:.1f}x fewer uplink bytes than dense updates" if saved > 1 else (
        f"with {1 / saved:.1f}x more uplink bytes than dense updates"
    )  # fmt: skip


def _limits(result: Result) -> list[str]:
    """What weakens the sentence before it."""
    said = []
    planned, ran = result.settings.get("rounds"), result.summary.get("rounds")
    if result.reason and planned != ran:
        said.append(f"Stopped early, after {ran} of {planned} rounds.")
    if result.accuracy is not None and result.chance is not None and not beats_chance([result.accuracy], result.chance):
        said.append(f"This is not better than guessing ({100 * result.chance.level:.1f} %) by three standard errors.")
    if result.held_out:
        said.append("No epsilon covers this accuracy: it was computed from private rows without noise.")
    if result.settings.get("public_rows") is not None:
        said.append("The clients held public rows.")
    return said
