"""What does not go together: methods that are left out, settings without effect, and the matrix."""

import re

import pytest

import strategies
from simulations.compare.cells.check import check_cells
from simulations.compare.cells.grid import Entry, Grid
from simulations.compare.command import accepted
from simulations.plan.prepare import prepare
from simulations.settings.checks import WORDS, all_rules
from simulations.settings.settings import all_settings, from_mapping, names_given

QUIET, FACTORS = {"sgd", "topk", "powersgd"}, {"dp-powersgd"}


def grid(*methods: str, **settings: object) -> Grid:
    return Grid(workload="digits", entries=tuple(Entry(label=m, method=m) for m in methods), settings=settings)


def test_secure_sums_refuse_methods_without_noise_or_with_factors_and_no_other():
    made, refused = accepted(grid(*strategies.names(), trust="secure"))
    assert set(refused) == QUIET | FACTORS
    assert {entry.label for entry in made.entries} == set(strategies.names()) - QUIET - FACTORS


@pytest.mark.parametrize("settings", [{}, {"trust": "aggregate"}, {"rank": 0}])
def test_other_settings_leave_the_grid_as_it_is(settings):
    """Also those that a run refuses for another reason: its cell reports that."""
    made = grid("lsg", "sgd", **settings)
    assert accepted(made) == (made, {})


BASE = {"workload": "digits", "method": "dpsgd", "engine": "local", "rounds": 1, "clients": 2, "noise_multiplier": 1.0}
IDLE = (
    ({"alpha": 0.3}, "alpha=0.3 needs partition=dirichlet, got partition=iid: give partition=dirichlet"),
    ({"shards_per_client": 3}, "needs partition=shards"),
    ({"local_learning_rate": 0.1}, "needs local_steps > 1 or personal, got local_steps=1"),
    ({"local_momentum": 0.5}, "needs local_steps > 1"),
    ({"workers": 2}, "workers=2 does not go with engine=local"),
    ({"method": "sgd", "noise_multiplier": None, "delta": 1e-6}, "delta=1e-06 needs a mechanism that adds noise"),
    ({"method": "sgd", "noise_multiplier": None, "clip_norm": 2.0}, "clip_norm=2 does not go with mechanism=none"),
    ({"method": "lsg", "sparsity": 0.0, "direction": "bottom"}, "direction=bottom needs sparsity > 0, got sparsity=0"),
    ({"method": "rs", "rank": 8}, "does not go with carrier=dense"),
    ({"method": "dp-ssgd", "prune_clip_norm": 2.0}, "needs prune=dp-snip, got prune=synflow"),
    ({"method": "gep", "biased": True, "residual_clip": 0.2}, "needs biased=false, got biased=true"),
)  # fmt: skip


@pytest.mark.parametrize(("changes", "why"), IDLE, ids=lambda value: str(value)[:40])
def test_a_given_setting_without_effect_is_refused(changes, why):
    given = {name: value for name, value in (BASE | changes).items() if value is not None}
    with pytest.raises(ValueError, match=why):
        prepare(from_mapping(given), given=names_given(given))
    prepare(from_mapping(given))  # one that no user gave, as in config.toml, is left alone


@pytest.mark.parametrize(
    "changes",
    [
        {"alpha": 0.3, "partition": "dirichlet"}, {"local_learning_rate": 0.1, "local_steps": 2},
        {"local_learning_rate": 0.1, "personal": "classifier"}, {"local_momentum": 0.0},
        {"method": "rs", "rank": 8, "carrier": "low-rank"}, {"method": "lsg", "direction": "bottom"},
    ],
)  # fmt: skip
def test_one_with_an_effect_or_switched_off_is_taken(changes):
    prepare(from_mapping(BASE | changes), given=names_given(BASE | changes))


def test_a_comparison_refuses_only_what_no_cell_uses():
    def cells(*partitions):
        return Grid(
            workload="digits", entries=(Entry(label="dpsgd", method="dpsgd"),), vary={"partition": partitions},
            settings={"alpha": 0.3, "noise_multiplier": 1.0},
        ).cells()  # fmt: skip

    check_cells(cells("iid", "dirichlet"))
    with pytest.raises(ValueError, match=r"in every cell, alpha=0\.3 needs partition=dirichlet"):
        check_cells(cells("iid", "shards"))


def test_every_rule_can_be_broken_and_said():
    """A rule about a misspelt fact would never be broken."""
    known = {*all_settings(), *WORDS, "down_grid_from_noise", "clip", "mechanism"}
    for rule in all_rules():
        for condition in (rule.of, rule.needs):
            assert set(re.findall(r"[a-z_]{2,}(?=[=!<> ]|$)", re.sub(r"[=<>]+[\w.|-]+", "=", condition))) - {
                "not", "and", "or",
            } <= known, rule  # fmt: skip
