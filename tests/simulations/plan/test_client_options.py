"""Settings of local steps and of the weights of clients: what they make of a plan, and what is refused."""

import pytest

from simulations.plan.plan import Plan, make_plan
from simulations.settings.settings import from_mapping
from tests.simulations.support.runs import SMALL, run_local


def plan_of(**settings: object) -> Plan:
    return make_plan(from_mapping(SMALL | settings))


def test_the_proximal_term_changes_a_run_and_no_epsilon(tmp_path):
    runs = [run_local(tmp_path / str(mu), local_steps=3, proximal=mu, codec="noise-floor") for mu in (0.0, 0.5)]
    assert not runs[0].weights.equal(runs[1].weights)
    assert [row.rejected for run in runs for row in run.rows] == [""] * 4
    assert runs[0].summary["epsilon_max"] == runs[1].summary["epsilon_max"]


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"proximal": 0.1}, "proximal=0.1 changes local steps from the second one on"),
        ({"proximal": 9.0, "local_steps": 2}, "expected 0 <= proximal"),
        ({"proximal": -1.0}, "expected 0 <= proximal"),
    ],
)
def test_a_term_without_effect_or_that_diverges_is_refused(settings, part):
    with pytest.raises(ValueError, match=part):
        plan_of(**settings)
