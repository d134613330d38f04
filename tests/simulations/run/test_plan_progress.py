"""A plan that takes its time says what lasts: in a pipe as lines, and never among its JSON."""

import io
import json

import pytest
from rich.console import Console

from fedlsg.simulations.report.terminals import progress
from fedlsg.simulations.run import plan_command as plan_command_module
from fedlsg.simulations.run.plan_command import plan_command

GIVEN = {"workload": "digits", "engine": "local", "features": "patches", "patch_filters": 8}
GIVEN |= {"patch_size": 3, "clients": 2, "rounds": 2}


@pytest.fixture(autouse=True)
def impatient(monkeypatch, tmp_path):
    """Each phase is said at once, and no cache has the features."""
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setenv("FEDLSG_CACHE", str(tmp_path))


@pytest.mark.slow
def test_a_first_plan_on_features_says_what_lasts():
    text = io.StringIO()
    plan_command(GIVEN, Console(file=text, width=200), phones=10, dropout=0.0, as_json=False)
    said = text.getvalue()
    assert "filters of features=patches, from synthetic images" in said
    assert "features of test: 360 examples; they are kept for later runs" in said
    assert "features of train" not in said, "a plan reads two rows of them"


@pytest.mark.slow
def test_a_plan_with_features_has_the_numbers_of_the_run(monkeypatch):
    """Negative control: a plan with all training rows encoded, as a run has them."""
    plans = []
    for data in (plan_command_module.data_for_plan, lambda settings, say: None):
        monkeypatch.setattr(plan_command_module, "data_for_plan", data)
        text = io.StringIO()
        plan_command(GIVEN, Console(file=text, width=200), phones=10, dropout=0.0, as_json=True)
        facts = json.loads(text.getvalue())
        plans.append({name: facts[name] for name in ("values", "bytes", "noise_multiplier", "rho")})
    assert plans[0] == plans[1]


@pytest.mark.slow
def test_json_stays_alone(capsys):
    plan_command(GIVEN, Console(width=200), phones=10, dropout=0.0, as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["workload"] == "digits"
    assert "features of test" in err
