"""The terms of a node config: what is missing, misspelt or out of range is refused by name."""

import pytest

from simulations.client.node.terms import read_terms
from simulations.grids.refusals import TermsError

LEAST = {"partition-id": 1, "ledger-dir": "/srv/ledger", "epsilon-max": 3, "delta-max": 1e-6}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partition-id", -1), ("partition-id", 1.0), ("partition-id", True), ("partition-id", "1"),
        ("num-partitions", 0), ("num-partitions", 1), ("ledger-dir", "ledger"), ("ledger-dir", ""), ("ledger-dir", 3),
        ("epsilon-max", 0), ("epsilon-max", -1), ("epsilon-max", float("inf")), ("epsilon-max", float("nan")),
        ("epsilon-max", "3"), ("epsilon-max", True), ("delta-max", 0.0), ("delta-max", 1.0), ("delta-max", "1e-5"),
        ("trust", "server"), ("colluders", -1), ("colluders", 0), ("colluders", True), ("trust", True),
        ("accept-changed-data", "yes"), ("accept-changed-data", 1),
        ("data", ""), ("data", 5),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_by_its_key(key, value):
    with pytest.raises(TermsError, match=key):
        read_terms(LEAST | {key: value})
