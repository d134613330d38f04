"""Where a head alone is trained, learning_rate is its rate; a preset's rate of a new head does not hide it."""

from dataclasses import replace

import pytest

from simulations import workloads
from simulations.settings.resolve import fill
from simulations.settings.settings import from_mapping
from simulations.workloads.text_sets import DEFAULTS


@pytest.fixture(scope="module")
def workload():
    """Digits with the preset of texts, which has a rate for the classifier."""
    return replace(workloads.load("digits"), defaults=DEFAULTS, method_defaults={})


@pytest.mark.parametrize(
    ("settings", "rate", "head"),
    [
        ({"method": "dpsgd", "features": "scattering", "learning_rate": 30.0}, 30.0, None),
        ({"method": "linear-probe", "learning_rate": 30.0}, 30.0, None),
        ({"method": "dp-tl", "sparsity": 0.5, "learning_rate": 30.0}, 30.0, None),
        ({"method": "linear-probe"}, 1e-3, 0.05),
        ({"method": "linear-probe", "learning_rate": 30.0, "classifier_learning_rate": 2.0}, 30.0, 2.0),
        ({"method": "dpsgd", "learning_rate": 30.0}, 30.0, 0.05),
        ({"method": "lora", "learning_rate": 30.0}, 30.0, 0.05),
    ],
)
def test_a_given_learning_rate_is_that_of_what_is_trained(workload, settings, rate, head):
    filled = fill(from_mapping(settings), workload)
    assert filled.parameters["learning_rate"] == rate
    assert filled.parameters.get("classifier_learning_rate") == head
