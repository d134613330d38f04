"""Means over seeds against numbers worked by hand, the mark of guessing, and what a terminal shows."""

import math

import pytest

from simulations.compare.lines import lines
from simulations.compare.table import columns_of, table_markdown
from simulations.report.table import records
from tests.simulations.support.compare_cases import result

TABLE = [
    *(result(a, seed=s, settings={"rank": 4, "sparsity": 0.3}) for s, a in enumerate((0.80, 0.84, 0.85))),
    *(result(a, seed=s, method="linear-probe") for s, a in enumerate((0.70, 0.74))),
    *(result(a, seed=s, method="rs", settings={"sparsity": 0.5}) for s, a in enumerate((0.10, 0.12))),
    result(0.97, method="sgd", epsilon=None),
    result(0.81, method="dpsgd"),
    result(None, method="dpsgd", seed=1),
    result(None, method="rgp", settings={"rank": 512}),
]


def test_a_line_by_hand():
    """.80 .84 .85: mean .83, squares 9 + 1 + 4 = 14 e-4 over 2; s.e. sqrt(7e-4 / 3 + .83 * .17 / 400)."""
    line = next(line for line in lines(TABLE) if line.method == "lsg")
    assert records(columns_of([line]), [line])[0] == {
        "label": "lsg", "method": "lsg", "workload": "digits", "model": "mlp", "rank": 4, "sparsity": 0.3,
        "delta": 1e-5, "epsilon_target": 3.0, "epsilon_max": pytest.approx(2.999), "epsilon_outside": None,
        "private": True, "unit": "example", "trust": "client",
        "rho": None, "n": 3, "planned": 3, "accuracy_mean": pytest.approx(0.83),
        "accuracy_sd": pytest.approx(math.sqrt(7e-4)),
        "loss_mean": 0.5, "standard_error": pytest.approx(math.sqrt(7e-4 / 3 + 0.83 * 0.17 / 400)), "chance": 0.1,
        "beats_chance": True, "over_linear_probe": pytest.approx(0.11), "uplink_bytes_per_client_round": 100.0,
        "saved_ratio": 4.0, "uplink_bytes_total": 1000.0, "downlink_bytes_total": 4000.0, "transfer_seconds": None,
        "wall_seconds": 11.0, "training_seconds": 5.0,
    }  # fmt: skip


def test_markdown_by_hand():
    text = table_markdown(lines(TABLE))
    assert text.splitlines()[:4] == [
        "| method | r | p | epsilon | accuracy, % | s.e. | n | over probe | uplink | saved | training, s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        "| lsg | 4 | 0.3 | 2.999 | 83.0 ± 2.6 | 2.4 | 3 | +11.0 | 100 B | 4.0x | 5 |",
        "| dpsgd | -- | -- | 2.999 | 81.0 | 2.0 | 1/2 | +9.0 | 100 B | 4.0x | 4 |",
    ]
    assert "| rs | -- | 0.5 | 2.999 | 11.0 ± 1.4 † |" in text
    assert "NOT PRIVATE" in text
    assert "- `rgp-seed0`: failed: rank too big" in text
