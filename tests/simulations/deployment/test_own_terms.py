"""Three real SuperNodes, each with what one run may spend in its own node config."""

import pytest

from benchmarks.flower.own_terms import TERMS, run_nodes


@pytest.mark.slow
def test_three_nodes_spend_what_their_own_terms_say(tmp_path):
    """The run says 8, which nobody spends; the stricter a node, the less it counts."""
    summary, rows = run_nodes(tmp_path, TERMS, {"rounds": 3})
    for row, terms in zip(rows, TERMS, strict=True):
        assert 0.98 * terms["epsilon"] < row["own"] <= terms["epsilon"]
        assert (row["planned"], row["epsilon"]) == (terms["epsilon"], row["own"])
        assert row["delta"] == terms.get("delta", 1e-5)
    sigmas, weights = ([row[name] for row in rows] for name in ("sigma", "weight"))
    assert sigmas == sorted(sigmas, reverse=True)
    assert weights == sorted(weights)
    assert weights[2] / weights[1] == pytest.approx((sigmas[1] / sigmas[2]) ** 2)
    assert summary["private"]
    assert summary["rounds"] == 3
