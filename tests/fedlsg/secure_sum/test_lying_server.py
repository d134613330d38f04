"""A server that tells clients different sets and keys reads nothing but the sum of one set of m
survivors or more.

Covered by the proof in ``fedlsg.secure_sum.terms``; here real clients are lied to.

The attack: one client's neighbours are each reported as absent to so many others that their mask
keys come out, while everybody hears that the client itself survived. Each single client is told a
set of m survivors that it cannot refuse.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from fedlsg.secure_sum import Client, Terms, reproducible_root
from fedlsg.secure_sum import client_attempt as client_file
from fedlsg.secure_sum import messages as wire
from fedlsg.secure_sum.keys import AttemptSecrets
from tests.fedlsg.support import lying_server
from tests.fedlsg.support.lying_server import Coalition, Sets
from tests.fedlsg.support.secure_rounds import make_terms

AGREED = "told the same sets"


def absent_to(terms: Terms, target: int, colluders: frozenset[int]) -> dict[int, set[int]] | None:
    """Which neighbours of the target to report as absent to whom, so that all their mask keys come
    out.

    None if there is no way: by a maximum flow from clients, D lies each, to neighbours, one lie for
    each missing share.
    """
    doomed = [who for who in terms.neighbours[target] if who not in colluders]
    honest = [who for who in terms.clients if who not in colluders]
    place = {("from", who): 1 + at for at, who in enumerate(honest)}
    place |= {("to", who): 1 + len(honest) + at for at, who in enumerate(doomed)}
    sink, dropouts = 1 + len(place), len(terms.clients) - terms.min_survivors
    missing = {
        who: terms.plan.threshold - len(colluders.intersection(terms.holders(who)))
        for who in doomed
    }
    edges = [(0, place["from", who], dropouts) for who in honest]
    edges += [(place["to", who], sink, missing[who]) for who in doomed]
    edges += [
        (place["from", who], place["to", j], 1)
        for j in doomed
        for who in terms.neighbours[j]
        if who in honest
    ]
    start, end, size = zip(*edges, strict=True)
    graph = csr_array((np.array(size, np.int32), (start, end)), shape=(sink + 1, sink + 1))
    flow = maximum_flow(graph, 0, sink)
    if flow.flow_value < sum(missing.values()):
        return None
    lies = flow.flow.toarray()
    return {
        who: {j for j in doomed if lies[place["from", who], place["to", j]] > 0} for who in honest
    }


def masked_for_an_attack(
    terms: Terms, colluders: frozenset[int], absent: dict[int, set[int]]
) -> Coalition:
    """Up to the tags: everybody hears the truth but for the survivors."""
    everyone = frozenset(terms.clients)
    coalition = Coalition(terms, colluders)
    coalition.rosters(dict.fromkeys(everyone, everyone))
    coalition.deliveries(dict.fromkeys(everyone, everyone))
    coalition.survivors({who: everyone - absent.get(who, set()) for who in everyone})
    return coalition


@contextmanager
def no_agreement() -> Iterator[None]:
    """The planted mistake: clients that give their shares without the tags of the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "_check_agreement", lambda self, request: None)
        yield


def plan_attack(terms: Terms, target: int) -> tuple[frozenset[int], dict[int, set[int]]] | None:
    """Colluders and lies that read the target; None if no t colluders can."""
    near = terms.neighbours[target]
    others = [*near, *(who for who in terms.clients if who not in (target, *near))]
    for colluders in map(frozenset, combinations(others, terms.colluders)):
        if (absent := absent_to(terms, target, colluders)) is not None:
            return colluders, absent
    return None


CASES = [
    (8, 6, 1),
    (20, 18, 1),
    (20, 18, 2),
    (30, 27, 1),
    (30, 27, 3),
    (50, 45, 1),
    (50, 45, 5),
    (100, 90, 1),
    (100, 90, 4),
    (100, 90, 10),
    pytest.param(200, 180, 1, marks=pytest.mark.slow),
    pytest.param(200, 180, 20, marks=pytest.mark.slow),
]
"""Clients, survivors, colluders: mostly the defaults, under which one client in ten may be
missing.
"""


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "survivors", "colluders"), CASES)
def test_different_survivors_give_a_clients_vector_without_the_agreement_and_nothing_with_it(
    clients, survivors, colluders
):
    terms = make_terms(clients, survivors=survivors, colluders=colluders, length=3)
    target = terms.clients[0]
    attack = plan_attack(terms, target)
    assert attack is not None
    coalition = masked_for_an_attack(terms, *attack)
    assert not coalition.refused, "no client can see the lie in what it is told alone"
    assert not coalition.requests()
    assert all(AGREED in why for why in coalition.refused.values())
    assert coalition.revealed() == []
    with no_agreement():
        coalition.requests()
    assert frozenset({target}) in coalition.revealed()
    assert np.array_equal(coalition.read_sum({target}), coalition.sum_of({target}))


def test_at_five_clients_the_thresholds_alone_are_enough():
    """No lie about survivors reads a single vector; with the agreement no client even answers
    one.
    """
    terms = make_terms(5, survivors=4, colluders=1, length=3)
    target, *others = terms.clients
    assert plan_attack(terms, target) is None
    for turn in range(1, 4):
        absent = {who: {others[(at + turn) % 4]} - {who} for at, who in enumerate(others)}
        coalition = masked_for_an_attack(terms, frozenset(others[-1:]), absent)
        answered = coalition.requests()
        assert answered <= coalition.colluders
        assert coalition.revealed() == []
        with no_agreement():
            coalition.requests()
        assert frozenset({target}) not in coalition.revealed()


@st.composite
def lies(
    draw: st.DrawFn,
) -> tuple[Terms, frozenset[int], dict[str, dict[int, frozenset[int]]], Sets]:
    """Terms, colluders, and what each client is told: one of three worlds, and single clients
    something else.

    And in whose place single clients are shown an old mask key: nobody's, some others', or all
    others'. Then sets may be told truly.
    """
    count = draw(st.integers(5, 9))
    colluders = draw(st.integers(1, 2))
    survivors = draw(st.integers((count + colluders) // 2 + 1, count))
    terms = make_terms(
        count, survivors=survivors, colluders=colluders, length=2, attempt=draw(st.integers(0, 3))
    )
    bad = draw(st.sets(st.sampled_from(terms.clients), min_size=colluders, max_size=colluders))
    some = st.frozensets(st.sampled_from(terms.clients), max_size=count - survivors)
    told: dict[str, dict[int, frozenset[int]]] = {}
    worlds = [frozenset(terms.clients)] * 3
    for stage in ("announced", "sharers", "survivors"):
        worlds = [world - draw(some) for world in worlds]
        which = draw(st.lists(st.sampled_from([0, 0, 0, 0, 1, 2]), min_size=count, max_size=count))
        told[stage] = {who: worlds[at] for who, at in zip(terms.clients, which, strict=True)}
        if draw(st.booleans()):
            who = draw(st.sampled_from(terms.clients))
            told[stage][who] = draw(st.frozensets(st.sampled_from(terms.clients))) | {who}
    some = st.frozensets(st.sampled_from(terms.clients)) | st.just(frozenset(terms.clients))
    replaced = draw(
        st.just({}) | st.dictionaries(st.sampled_from(terms.clients), some, min_size=1, max_size=2)
    )
    if replaced and draw(st.booleans()):
        told = {stage: dict.fromkeys(terms.clients, frozenset(terms.clients)) for stage in told}
    return terms, frozenset(bad), told, {who: others - {who} for who, others in replaced.items()}


def what_comes_out(
    terms: Terms, bad: frozenset[int], told: dict, sent_back: bool, replaced: Sets | None = None
) -> tuple[Coalition, frozenset[int]]:
    coalition = Coalition(terms, bad, replaced or {})
    coalition.rosters(told["announced"])
    coalition.deliveries(told["sharers"])
    coalition.survivors(told["survivors"])
    return coalition, coalition.requests(sent_back=sent_back) - bad


@pytest.mark.slow
@given(lie=lies(), sent_back=st.booleans())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_the_server_says_one_sum_comes_out_at_most(lie, sent_back):
    terms, bad, told, replaced = lie
    coalition, answered = what_comes_out(terms, bad, told, sent_back, replaced)
    agreed = {tuple(told[stage][who] for stage in told) for who in answered}
    assert len(agreed) <= 1, "honest clients answered for different sets"
    groups = coalition.revealed()
    if not agreed:
        assert groups == []
        return
    ((_, _, survivors),) = agreed
    assert len(survivors) >= terms.min_survivors
    assert groups in ([], [survivors - bad])
    for group in groups:
        assert np.array_equal(coalition.read_sum(group), coalition.sum_of(group))


def test_an_honest_server_reads_the_sum_with_its_colluders():
    """Control of the rule that finds what comes out: with the truth it finds the sum, and no
    more.
    """
    terms = make_terms(9, survivors=7, colluders=2, length=2)
    everyone, bad = frozenset(terms.clients), frozenset(terms.clients[:2])
    alive = everyone - {terms.clients[5]}
    told = {stage: dict.fromkeys(everyone, everyone) for stage in ("announced", "sharers")}
    coalition, answered = what_comes_out(
        terms, bad, told | {"survivors": dict.fromkeys(alive, alive)}, False
    )
    assert answered == alive - bad
    assert coalition.revealed() == [alive - bad]
    assert np.array_equal(coalition.read_sum(alive - bad), coalition.sum_of(alive - bad))


def test_old_keys_read_a_vector_where_clients_agree_on_who_announced_keys_alone(
    monkeypatch: pytest.MonkeyPatch,
):
    """Nobody is told another set; one client is shown old mask keys of all others."""
    terms = make_terms(9, survivors=7, colluders=1, length=2)
    everyone = frozenset(terms.clients)
    target = terms.clients[0]
    bad = frozenset(terms.clients[1:2])
    told = {
        stage: dict.fromkeys(everyone, everyone) for stage in ("announced", "sharers", "survivors")
    }
    replaced = {target: everyone - {target}}
    coalition, answered = what_comes_out(terms, bad, told, False, replaced)
    assert (answered, coalition.revealed()) == (frozenset(), [])
    monkeypatch.setattr(wire, "roster_digest", lambda keys, terms: wire.write_set(keys, terms))
    coalition, answered = what_comes_out(terms, bad, told, False, replaced)
    assert answered == everyone - bad
    assert frozenset({target}) in coalition.revealed()
    assert np.array_equal(coalition.read_sum({target}), coalition.sum_of({target}))


def attacked() -> tuple[Coalition, frozenset[int]]:
    """A coalition that has masked vectors and tags, and the group that it is after."""
    terms = make_terms(12, survivors=10, colluders=1, length=3)
    attack = plan_attack(terms, terms.clients[0])
    assert attack is not None
    return masked_for_an_attack(terms, *attack), frozenset(terms.clients[:1])


def test_tags_that_are_equal_in_both_directions_are_caught(monkeypatch: pytest.MonkeyPatch):
    """The server sends a client its own tags back, as if all others had been told the same."""
    real = client_file.agreement_tags

    def both_ways(own, own_client, other, other_client, *about):
        pair = real(own, own_client, other, other_client, *about)
        return (pair[own_client > other_client],) * 2

    coalition, _ = attacked()
    assert not coalition.requests(sent_back=True)
    for file in (client_file, lying_server):
        monkeypatch.setattr(file, "agreement_tags", both_ways)
    coalition, target = attacked()
    assert not coalition.requests()
    coalition.requests(sent_back=True)
    assert target in coalition.revealed()


def test_a_client_that_tags_twice_is_caught(monkeypatch: pytest.MonkeyPatch):
    """Each client first tags what each other one is told, and only then what it is told itself."""
    coalition, target = attacked()
    terms, told = coalition.terms, coalition.told["survivors"]
    collected = dict[tuple[int, int], bytes]()
    for who in terms.clients:
        key = AttemptSecrets(reproducible_root(0, who), terms.digest, who).share_key
        for other in terms.clients:
            if other != who and who in told[other]:
                sets = wire.sets_digest(
                    coalition.roster_digest(other), terms.clients, told[other], terms
                )
                public = coalition.public[other].share_key
                collected[who, other] = client_file.agreement_tags(
                    key, who, public, other, terms.digest, sets
                )[0]
    coalition.tags = {
        who: {j: collected[who, j] for i, j in collected if i == who} for who in terms.clients
    }
    coalition.requests()
    assert target in coalition.revealed()
