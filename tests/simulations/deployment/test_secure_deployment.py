"""A secure sum on Flower's deployment engine: one SuperLink, three SuperNodes, five stages of
ordinary messages.
"""

import json

import pytest

from benchmarks.flower.deployment import deploy
from fedlsg.privacy import Ledger
from tests.simulations.support.runs import plan_at


@pytest.mark.slow
@pytest.mark.ray
def test_the_server_gets_the_sum_of_three_supernodes(tmp_path):
    """Flower keeps the state of a node's Context between the stages, each of which is a process of
    its own.
    """
    plan, directory = plan_at(
        tmp_path / "run",
        engine="flower",
        trust="secure",
        clients=3,
        colluders=1,
        rounds=1,
        reproducible=False,
    )
    flower = deploy(plan, tmp_path / "flower", nodes=3)
    assert flower.status == "finished:completed", flower.log[-3000:]
    summary = json.loads(directory.summary.read_text())
    assert (summary["private"], summary["empty_rounds"], summary["trust"]) == (True, 0, "secure")
    assert summary["secure_sum"] == {
        "clients": 3,
        "min_survivors": 3,
        "colluders": 1,
        "contributors": 2,
    }
    for client in range(3):
        (entry,) = Ledger(directory.ledger(client), client=client).entries
        assert entry.log_ratio > 0
