"""Settings of secure sums: their defaults, and what does not fit them, refused by name before anything is written."""

import math

import pytest

from fedlsg.discrete import most_log_ratio
from simulations.plan.plan import events_of, make_plan
from simulations.settings.settings import from_mapping
from tests.simulations.support.runs import SMALL


def plan(**settings: object):
    return make_plan(from_mapping({**SMALL, "trust": "secure", **settings}))


@pytest.mark.parametrize(
    ("clients", "survivors", "colluders"),
    [(2, 2, 1), (3, 3, 1), (5, 5, 1), (9, 9, 1), (10, 9, 1), (19, 18, 1), (50, 45, 5)],
)
def test_one_client_of_ten_may_be_missing_and_one_may_collude_at_least_one(clients, survivors, colluders):
    settings, sums = (found := plan(clients=clients)).settings, found.sums
    assert (settings.min_survivors, settings.colluders) == (survivors, colluders)
    assert (sums.clients, sums.min_survivors, sums.colluders) == (clients, survivors, colluders)
    mechanism = found.method.mechanism
    assert mechanism.noise_share == 1 / math.sqrt(survivors - colluders)
    assert (mechanism.min_survivors, mechanism.colluders) == (survivors, colluders)
    assert (sums.releases, sums.delta, sums.expected_examples) == (2, settings.delta, found.divisor)


def test_all_clients_share_the_noise_of_the_one_that_needs_most():
    """With a batch of one size the smallest client has the largest rate."""
    found = plan(clients=2, batch_size=20, partition="dirichlet", alpha=0.5, sample_rate=None, noise_multiplier=None)
    assert len({terms.sample_rate for terms in found.terms}) > 1
    assert len({terms.noise_multiplier for terms in found.terms}) == 1


def test_the_plan_counts_the_log_ratio_of_the_whole_run():
    found = plan(clients=4)
    (event,) = events_of(found, found.terms[0], blocks=5)
    assert event.log_ratio == most_log_ratio(found.sums) > 0


NO_NOISE = {"noise_multiplier": None}
REFUSED = {
    "one client": ({"clients_per_round": 1}, "clients_per_round > 1, got clients_per_round=1: .*: raise clients"),
    "two local steps": ({"local_steps": 2}, "trust=secure needs local_steps=1, got local_steps=2"),
    "half precision": ({"codec": "float16"}, "integers on a grid of its own, and codec=float16 would not be used"),
    "sign": ({"codec": "sign"}, "codec=sign would not be used"),
    "noise-floor": ({"codec": "noise-floor"}, "codec=noise-floor would not be used"),
    "factors": ({"method": "dp-powersgd"}, "factors do not add up"),
    "chosen positions": ({"method": "topk", **NO_NOISE}, "it sums noisy integers at derived positions"),
    "no noise": ({"method": "sgd", **NO_NOISE}, "needs mechanism=dp and indices=derived, got mechanism=none"),
    "noise without a clip": ({"mechanism": "noise-only"}, "and indices=derived, got mechanism=noise-only"),
    "pruning by data": ({"method": "dp-ssgd", "prune": "dp-snip"}, "it prunes by sums that are not planned for"),
    "explicit positions": ({"indices": "explicit"}, "got mechanism=dp, indices=explicit"),
    "half the clients": ({"clients": 6, "min_survivors": 3}, "colluders\\) / 2 = 3.5, got 3"),
    "more than all": ({"clients": 6, "min_survivors": 7}, "expected 1 <= min_survivors=7 <= clients_per_round=6"),
    "too many colluders": ({"clients": 6, "colluders": 6}, r"clients_per_round=6, min_survivors=6, colluders=6: .*"),
    "nobody reads": ({"clients": 6, "colluders": 0}, "colluders=0: every client of a sum .* knows its own noise"),
    "colluders alone": ({"trust": "client", "colluders": 1}, "colluders=1 needs trust=secure"),
    "colluders of an assumed sum": ({"trust": "aggregate", "colluders": 0}, "got trust=aggregate"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(case):
    settings, text = REFUSED[case]
    with pytest.raises(ValueError, match=text):
        plan(**({"clients": 4} | settings))
