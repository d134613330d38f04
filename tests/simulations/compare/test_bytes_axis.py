"""Accuracy against all bytes: which lines share a panel, numbers by hand, the figure, the page, the commands."""

import pytest

from simulations.compare.bytes_axis import SAME, panels
from simulations.compare.lines import lines
from tests.simulations.support.compare_cases import result


def shown(results):
    return [(panel.title, [line.name for line in panel.lines]) for panel in panels(lines(results))]


def claimed(epsilon: float, **more):
    """A run whose ledgers say ``epsilon``, whatever its target was."""
    found = result(0.8, **more)
    return found.__class__(**{**vars(found), "summary": {**found.summary, "epsilon_max": epsilon}})


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ({"epsilon": 3.0}, {"epsilon": 3.0 * (1 + SAME)}, True),
        ({"epsilon": 3.0}, {"epsilon": 3.0 * (1 + SAME) + 0.01}, False),
        ({"epsilon": 3.0}, {"epsilon": 3.0, "settings": {"delta": 1e-6}}, False),
        ({"epsilon": 3.0}, {"epsilon": 3.0, "settings": {"trust": "aggregate"}}, False),
        ({"epsilon": 3.0}, {"epsilon": 3.0, "settings": {"trust": "client"}}, True),
        ({"epsilon": 3.0}, {"epsilon": 3.0, "settings": {"workload": "cifar10"}}, False),
        ({"epsilon": 3.0}, {"epsilon": 3.0, "settings": {"holdout": 0.1}}, False),
    ],
    ids=["within a percent", "epsilon", "delta", "trust", "the default trust", "workload", "other rows"],
)
def test_only_equal_claims_share_a_panel(one, other, together):
    """What counts is the epsilon that the ledgers say, not the target: both targets are 3 here."""
    own = {key: dict(value.get("settings", {})) for key, value in (("one", one), ("other", other))}
    runs = [claimed(one["epsilon"], method="rs", settings=own["one"])]
    runs += [claimed(other["epsilon"], method="rgp", settings=own["other"])]
    found = shown(runs)
    assert len(found) == (1 if together else 2)
    assert sorted(name for _, names in found for name in names) == ["rgp", "rs"]
