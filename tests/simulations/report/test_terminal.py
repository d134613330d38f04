"""What a user sees at common widths: progress, the result of a run, and tables, which lose optional
columns first.
"""

import io
from typing import Any

import pytest
from rich.console import Console

from fedlsg.carriers import LayerRow
from fedlsg.carriers.parameter_layout import Travel
from fedlsg.simulations.report.pages.page import Row, Table
from fedlsg.simulations.report.terminals import progress
from fedlsg.simulations.report.terminals.terminal import (
    FROZEN_LINES,
    layers_shown,
    summary_table,
    terminal_table,
)
from fedlsg.simulations.report.words import outcome, privacy_line

SUMMARY: dict[str, Any] = {
    "workload": "digits",
    "model": "mlp",
    "method": "lsg",
    "clients": 5,
    "rounds": 100,
    "engine": "flower",
    "accuracy": 0.9306,
    "loss": 0.2512,
    "private": True,
    "reproducible": False,
    "epsilon_max": 7.9981,
    "epsilon_median": 7.9,
    "delta": 1e-5,
    "noise_multiplier": 6.1234,
    "trust": "client",
    "uplink_bytes": 2_188_000,
    "uplink_bytes_wire": 2_300_000,
    "uplink_bytes_dense": 9_620_000,
    "downlink_bytes": 9_620_000,
    "downlink_bytes_wire": 9_700_000,
    "wall_seconds": 42.5,
    "device": "cpu",
}


def shown(table: Any, width: int) -> str:
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(table)
    return console.export_text()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"private": False, "reproducible": True},
            "NOT PRIVATE: the noise is reproducible",
        ),
        ({"private": False, "epsilon_max": "inf"}, "NOT PRIVATE: no finite epsilon is claimed"),
        (
            {"trust": "aggregate"},
            "only the sum is private: an ideal secure aggregation is assumed and not provided",
        ),
        (
            {
                "trust": "secure",
                "secure_sum": {
                    "clients": 10,
                    "min_survivors": 9,
                    "colluders": 1,
                    "contributors": 8,
                },
            },
            "of the sum of at least 9 of 10 clients: an honest-but-curious server sees no single "
            "payload, also with 1 colluding client (secure aggregation, computational; noise "
            "planned for 8 honest clients)",
        ),
        (
            {
                "trust": "secure",
                "secure_sum": {"clients": 5, "min_survivors": 5, "colluders": 0, "contributors": 5},
            },
            "sees no single payload, if no client colludes with it (secure aggregation, "
            "computational; noise planned for 5 honest clients)",
        ),
        (
            {"trust": "secure", "private": False, "reproducible": True},
            "NOT PRIVATE: the noise is reproducible",
        ),
    ],
)
def test_what_the_privacy_line_rests_on(changes, expected):
    assert expected in privacy_line(SUMMARY | changes)
    words = " ".join(shown(summary_table(SUMMARY | changes), 80).split())
    assert expected in words


def by_reader(outside: float, one: float, together: float) -> dict[str, float]:
    names = ("outside", "server", "participant", "participants", "server_and_participants")
    return dict(zip(names, (outside, outside, one, together, together), strict=True))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {
                "trust": "secure",
                "secure_sum": {"clients": 5, "min_survivors": 5, "colluders": 1, "contributors": 4},
                "epsilon_by_reader": by_reader(6.5001, 7.999, 7.999),
            },
            "epsilon 7.999 against one participant, also together with the server; 6.501 against "
            "the outside or the server alone",
        ),
        (
            {
                "trust": "secure",
                "secure_sum": {
                    "clients": 50,
                    "min_survivors": 45,
                    "colluders": 5,
                    "contributors": 40,
                },
                "epsilon_by_reader": by_reader(7.3, 7.4, 7.999),
            },
            "epsilon 7.999 against 5 participants, also together with the server; 7.400 against "
            "one of them; 7.300 against the outside or the server alone",
        ),
        (
            {
                "trust": "aggregate",
                "secure_sum": None,
                "epsilon_by_reader": by_reader(7.5, 7.999, 7.999),
            },
            "epsilon 7.999 against one participant, also together with the server; 7.500 against "
            "the outside or the server alone",
        ),
        ({"epsilon_by_reader": by_reader(7.999, 7.999, 7.999)}, None),
        (
            {
                "trust": "secure",
                "secure_sum": {"clients": 5, "min_survivors": 5, "colluders": 1, "contributors": 4},
            },
            None,
        ),
        (
            {"trust": "aggregate", "private": False, "epsilon_by_reader": by_reader(1.0, 2.0, 2.0)},
            None,
        ),
        ({"trust": "aggregate", "epsilon_by_reader": by_reader(7.999, 7.999, 7.999)}, None),
    ],
)
def test_the_readers_of_a_sum_in_words(changes, words):
    """Each number is rounded up. One that holds for all, or is not on record, has no line."""
    assert outcome(SUMMARY | changes).get("readers") == words


@pytest.mark.parametrize("even", [True, False])
def test_no_time_is_estimated_where_parts_are_uneven(even, monkeypatch):
    """Attacks: one part may end at once, and the next take minutes. The control estimates."""
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    text = io.StringIO()
    with progress.bar(Console(file=text, width=200), "attacking", even=even) as tick:
        for share in (0.1, 0.2, 0.5):
            now[0] += 30.0 * share
            tick(share, "update 1")
    shown = text.getvalue()
    assert "attacking  50 %  update 1" in shown or "attacking 50 %  update 1" in shown
    assert ("estimate:" in shown) == ("left" in shown) == even


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ([8.0] * 12, "80.0 s"),
        ([8.0] + [0.02] * 899, "20.0 s"),
        ([0.1] * 40 + [9.0] * 4, None),
        ([5.0, 3.0, *[4.0] * 10], "40"),
    ],
    ids=["even", "slow first", "slow later", "nearly even"],
)
def test_an_estimate_is_printed_only_where_two_paces_agree(seconds, said, monkeypatch):
    """An audit said 126 minutes by its first part, and took 3. After a slow start the first one is
    off by two at most.
    """
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    text = io.StringIO()
    with progress.count_bar(Console(file=text, width=200), "rounds", len(seconds)) as tick:
        for took in seconds:
            now[0] += took
            tick()
    estimates = [line for line in text.getvalue().splitlines() if line.startswith("estimate:")]
    assert len(estimates) == (said is not None)
    assert all(f"about {said}" in line for line in estimates), estimates


def layer(name: str, travel: Travel) -> LayerRow:
    return LayerRow(name=name, shape=(4, 3), travel=travel, values=0 if travel == "frozen" else 12)


@pytest.mark.parametrize("count", [FROZEN_LINES, FROZEN_LINES + 1])
def test_many_frozen_parameters_are_one_line(count, capsys):
    names = [f"body_{letter}.weight" for letter in "abcdefgh"[:count]]
    rows = [layer("head.weight", "dense"), *(layer(name, "frozen") for name in names)]
    Console(width=100).print(layers_shown(rows))
    text = capsys.readouterr().out
    assert "head.weight" in text
    assert f"total: 1 dense, {count} frozen; 12 values sent" in text
    folded = count > FROZEN_LINES
    assert all((name in text) is not folded for name in names)
    assert (f"{count} parameters  {12 * count} values  frozen" in text) is folded


TABLE = Table(
    columns=("method", "wire", "a wide heading, s", "n"),
    rows=(Row(cells=("lsg", "1 kB", "1.5", "3")),),
    left=(0,),
    optional=(1, 2),
)


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (60, ""),  # control: all columns fit
        (20, "left out at this width: a wide heading"),  # wire is the first to go, and fits again
        (9, "left out at this width: wire, a wide heading"),
    ],
)
def test_a_table_says_which_columns_it_leaves_out(width, said):
    text = shown(terminal_table(TABLE, width), 60).rstrip()
    assert ("left out" in text) == bool(said)
    assert text.endswith(said)
    assert ("wire" in text.splitlines()[0]) == ("wire" not in said)
    assert all(word in text for word in ("method", "lsg", "n", "3"))
