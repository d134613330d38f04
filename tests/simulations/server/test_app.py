"""The ServerApp under Flower: the last line of a run that fails."""

import logging

import pytest
from flwr.app import Context, RecordDict
from flwr.supercore.exit import exit_handler

from simulations.flower.server import Strategy
from simulations.server.app import main
from tests.simulations.flower.test_flower_app import two_sides


def test_of_an_own_app_as_well_and_only_of_what_failed_last(monkeypatch, caplog):
    monkeypatch.setattr(exit_handler, "registered_exit_handlers", [])
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    for wrong in ({"rank": -1}, {"clients": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))) as refused:
            Strategy(two_sides, method="lsg", **wrong)
    exit_handler.trigger_exit_handlers(run_before_force_exit=False)
    assert [record.message for record in caplog.records if "error" in record.message] == [
        f"fedlsg: error: {refused.value}"
    ]
    with pytest.raises(ValueError, match="clients"):
        Strategy(two_sides, method="lsg", clients=0)
    Strategy(two_sides, method="lsg")  # the app caught it, and went on
    exit_handler.trigger_exit_handlers(run_before_force_exit=False)
    assert caplog.text.count("fedlsg: error") == 1


def test_a_wrong_setting_and_its_fix_are_said_after_flower_s_exit_code(monkeypatch, caplog):
    monkeypatch.setattr(exit_handler, "registered_exit_handlers", [])
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={"clients": 0})
    with pytest.raises(ValueError, match="clients") as refused:
        main(None, context)
    assert "fedlsg: error" not in caplog.text
    exit_handler.trigger_exit_handlers(run_before_force_exit=False)  # as flwr_exit does, below its own text
    assert f"fedlsg: error: {refused.value}" in caplog.text
