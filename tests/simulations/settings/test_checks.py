"""What does not go together, settings without effect, and those of secure sums."""

import math
from dataclasses import replace

import pytest

from fedlsg import strategies
from fedlsg.config.rules import needs
from fedlsg.secure_sum.discrete import most_log_ratio
from fedlsg.simulations.compare.compare_command import accepted
from fedlsg.simulations.compare.grid.cells import Entry, Grid
from fedlsg.simulations.compare.grid.grid_file import check_cells
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.client_noise import events_of
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings import rule_checker
from fedlsg.simulations.settings.rule_checker import FACTS, check_given, codec_lists, facts_of
from fedlsg.simulations.settings.settings import all_settings, from_mapping, names_given
from tests.simulations.support.runs import SMALL

QUIET, FACTORS = {"sgd", "topk", "powersgd"}, {"dp-powersgd"}


def grid(*methods: str, **settings: object) -> Grid:
    return Grid(
        workload="digits",
        entries=tuple(Entry(label=m, method=m) for m in methods),
        settings=settings,
    )


def test_secure_sums_refuse_methods_without_noise_or_with_factors_and_no_other():
    made, refused = accepted(grid(*strategies.names(), trust="secure"))
    assert set(refused) == QUIET | FACTORS
    assert {entry.label for entry in made.entries} == set(strategies.names()) - QUIET - FACTORS


@pytest.mark.parametrize("settings", [{}, {"trust": "aggregate"}, {"rank": 0}])
def test_other_settings_leave_the_grid_as_it_is(settings):
    """Also those that a run refuses for another reason: its cell reports that."""
    made = grid("lsg", "sgd", **settings)
    assert accepted(made) == (made, {})


BASE = {
    "workload": "digits",
    "method": "dpsgd",
    "engine": "local",
    "rounds": 1,
    "clients": 2,
    "noise_multiplier": 1.0,
}
IDLE = (
    (
        {"alpha": 0.3},
        "alpha=0.3 needs partition=dirichlet, got partition=iid: give partition=dirichlet",
    ),
    ({"shards_per_client": 3}, "needs partition=shards"),
    ({"local_learning_rate": 0.1}, "needs local_steps > 1 or personal, got local_steps=1"),
    ({"local_momentum": 0.5}, "needs local_steps > 1"),
    ({"workers": 2}, "workers=2 does not go with engine=local"),
    (
        {"method": "sgd", "noise_multiplier": None, "delta": 1e-6},
        "delta=1e-06 needs a mechanism that adds noise",
    ),
    (
        {"method": "sgd", "noise_multiplier": None, "clip_norm": 2.0},
        "clip_norm=2 does not go with mechanism=none",
    ),
    (
        {"method": "lsg", "sparsity": 0.0, "direction": "bottom"},
        "direction=bottom needs sparsity > 0, got sparsity=0",
    ),
    ({"method": "rs", "rank": 8}, "does not go with carrier=dense"),
    ({"method": "dp-ssgd", "prune_clip_norm": 2.0}, "needs prune=dp-snip, got prune=synflow"),
    (
        {"method": "gep", "biased": True, "residual_clip": 0.2},
        "needs biased=false, got biased=true",
    ),
)


@pytest.mark.parametrize(("changes", "why"), IDLE, ids=lambda value: str(value)[:40])
def test_a_given_setting_without_effect_is_refused(changes, why):
    given = {name: value for name, value in (BASE | changes).items() if value is not None}
    with pytest.raises(ValueError, match=why):
        prepare(from_mapping(given), given=names_given(given))
    prepare(from_mapping(given))  # one that no user gave, as in config.toml, is left alone


@pytest.mark.parametrize(
    "changes",
    [
        {"alpha": 0.3, "partition": "dirichlet"},
        {"local_learning_rate": 0.1, "local_steps": 2},
        {"local_learning_rate": 0.1, "personal": "classifier"},
        {"local_momentum": 0.0},
        {"method": "rs", "rank": 8, "carrier": "low-rank"},
        {"method": "lsg", "direction": "bottom"},
    ],
)
def test_one_with_an_effect_or_switched_off_is_taken(changes):
    prepare(from_mapping(BASE | changes), given=names_given(BASE | changes))


def test_a_comparison_refuses_only_what_no_cell_uses():
    def cells(*partitions):
        return Grid(
            workload="digits",
            entries=(Entry(label="dpsgd", method="dpsgd"),),
            vary={"partition": partitions},
            settings={"alpha": 0.3, "noise_multiplier": 1.0},
        ).cells()

    check_cells(cells("iid", "dirichlet"))
    with pytest.raises(ValueError, match=r"in every cell, alpha=0\.3 needs partition=dirichlet"):
        check_cells(cells("iid", "shards"))


def test_every_fact_is_known_in_a_run():
    """A rule on one that ``facts_of`` leaves out would never be broken."""
    base = prepare(from_mapping(BASE))
    facts = facts_of(base.settings, method=base.method, workload=base.workload)
    assert FACTS.keys() <= facts.keys()
    assert facts.keys() <= {*FACTS, *all_settings(), *codec_lists()}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (needs("clips"), "unknown fact .*'clips'; did you mean 'clip'"),
        (needs("rank<ranks"), "unknown fact .*'ranks'; did you mean 'rank'"),
        (needs("rank>1 or not privat"), "'privat'; did you mean 'private'"),
        (needs("private", "got {epsilons}"), "'epsilons'; did you mean 'epsilon'"),
        (needs("private", of="trusts=server"), "'trusts'; did you mean 'trust'"),
    ],
)
def test_a_rule_on_a_fact_that_does_not_exist_is_refused(rule, message, monkeypatch):
    rounds = all_settings()["rounds"]
    wrong = replace(rounds, setting=replace(rounds.setting, rules=(rule,)))
    monkeypatch.setattr(rule_checker, "all_settings", lambda: {**all_settings(), "rounds": wrong})
    with pytest.raises(ValueError, match=message):
        check_given(from_mapping(BASE))


def plan(**settings: object):
    return make_plan(from_mapping({**SMALL, "trust": "secure", **settings}))


@pytest.mark.parametrize(
    ("clients", "survivors", "colluders"),
    [(2, 2, 1), (3, 3, 1), (5, 5, 1), (9, 9, 1), (10, 9, 1), (19, 18, 1), (50, 45, 5)],
)
def test_one_client_of_ten_may_be_missing_and_one_may_collude_at_least_one(
    clients, survivors, colluders
):
    settings, sums = (found := plan(clients=clients)).settings, found.sums
    assert (settings.min_survivors, settings.colluders) == (survivors, colluders)
    assert (sums.clients, sums.min_survivors, sums.colluders) == (clients, survivors, colluders)
    mechanism = found.method.mechanism
    assert mechanism.noise_share == 1 / math.sqrt(survivors - colluders)
    assert (mechanism.min_survivors, mechanism.colluders) == (survivors, colluders)
    assert (sums.releases, sums.delta, sums.expected_examples) == (2, settings.delta, found.divisor)


def test_all_clients_share_the_noise_of_the_one_that_needs_most():
    """With a batch of one size the smallest client has the largest rate."""
    found = plan(
        clients=2,
        batch_size=20,
        partition="dirichlet",
        alpha=0.5,
        sample_rate=None,
        noise_multiplier=None,
    )
    assert len({terms.sample_rate for terms in found.terms}) > 1
    assert len({terms.noise_multiplier for terms in found.terms}) == 1


def test_the_plan_counts_the_log_ratio_of_the_whole_run():
    found = plan(clients=4)
    (event,) = events_of(found, found.terms[0], blocks=5)
    assert event.log_ratio == most_log_ratio(found.sums) > 0


NO_NOISE = {"noise_multiplier": None}
REFUSED = {
    "one client": (
        {"clients_per_round": 1},
        "clients_per_round > 1, got clients_per_round=1: .*: raise clients",
    ),
    "two local steps": ({"local_steps": 2}, "trust=secure needs local_steps=1, got local_steps=2"),
    "half precision": (
        {"codec": "float16"},
        "integers on a grid of its own, and codec=float16 would not be used",
    ),
    "sign": ({"codec": "sign"}, "codec=sign would not be used"),
    "noise-floor": ({"codec": "noise-floor"}, "codec=noise-floor would not be used"),
    "factors": ({"method": "dp-powersgd"}, "factors do not add up"),
    "chosen positions": (
        {"method": "topk", **NO_NOISE},
        "it sums noisy integers at derived positions",
    ),
    "no noise": (
        {"method": "sgd", **NO_NOISE},
        "needs mechanism=dp and indices=derived, got mechanism=none",
    ),
    "noise without a clip": (
        {"mechanism": "noise-only"},
        "and indices=derived, got mechanism=noise-only",
    ),
    "pruning by data": (
        {"method": "dp-ssgd", "prune": "dp-snip"},
        "it prunes by sums that are not planned for",
    ),
    "explicit positions": ({"indices": "explicit"}, "got mechanism=dp, indices=explicit"),
    "half the clients": ({"clients": 6, "min_survivors": 3}, "colluders\\) / 2 = 3.5, got 3"),
    "more than all": (
        {"clients": 6, "min_survivors": 7},
        "expected 1 <= min_survivors=7 <= clients_per_round=6",
    ),
    "too many colluders": (
        {"clients": 6, "colluders": 6},
        r"clients_per_round=6, min_survivors=6, colluders=6: .*",
    ),
    "nobody reads": (
        {"clients": 6, "colluders": 0},
        "colluders=0: every client of a sum .* knows its own noise",
    ),
    "colluders alone": ({"trust": "client", "colluders": 1}, "colluders=1 needs trust=secure"),
    "colluders of an assumed sum": ({"trust": "aggregate", "colluders": 0}, "got trust=aggregate"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(case):
    settings, text = REFUSED[case]
    with pytest.raises(ValueError, match=text):
        plan(**({"clients": 4} | settings))
