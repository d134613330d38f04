"""Degree and threshold hold in every case, by brute force; the graph is regular, symmetric and
k-connected.
"""

from itertools import combinations, product

import pytest

from fedlsg.secure_sum.terms import GraphPlan, harary_graph, plan_graph, public_order
from tests.fedlsg.support.secure_rounds import make_terms

CASES = [
    (clients, survivors, colluders)
    for clients in range(2, 41)
    for survivors in range(2, clients + 1)
    for colluders in range(1, survivors)
    if 2 * survivors > clients + colluders
]


def connected(graph: dict[int, tuple[int, ...]], left: set[int]) -> bool:
    """Whether those who are left are connected with each other."""
    seen, new = set[int](), {min(left)}
    while new:
        seen |= new
        new = {other for who in new for other in graph[who] if other in left} - seen
    return seen == left


@pytest.mark.parametrize("clients", range(2, 41))
def test_thresholds_hold_in_the_worst_case(clients):
    for count, survivors, colluders in CASES:
        if count == clients:
            plan = plan_graph(clients, min_survivors=survivors, colluders=colluders)
            holders, dropouts = plan.degree + 1, clients - survivors
            assert plan.degree < clients
            assert plan.degree * clients % 2 == 0
            assert 2 * plan.threshold > holders + colluders
            assert colluders < plan.threshold <= holders - dropouts
            assert plan.degree >= min(colluders + dropouts + 1, clients - 1)


@pytest.mark.parametrize(("clients", "survivors", "colluders"), [c for c in CASES if c[0] <= 9])
def test_honest_survivors_are_connected_whoever_is_gone(clients, survivors, colluders):
    """Every set of K - m dropouts and t colluders is taken away."""
    plan = plan_graph(clients, min_survivors=survivors, colluders=colluders)
    graph = harary_graph(range(clients), plan.degree)
    away = clients - survivors + colluders
    assert all(
        connected(graph, set(range(clients)) - set(gone))
        for gone in combinations(range(clients), away)
    )


def second_group(
    graph: dict[int, tuple[int, ...]], survivors: int, colluders: int, quorum: int
) -> object:
    """By brute force: a group of honest survivors, not all of them, whose sum a lying server could
    read, or None.

    ``quorum`` survivors tagged the same sets, so they have masks with all survivors around them.
    Each other one may have been told sharers without some of its neighbours, D at most, and has no
    masks with these. The group's sum is read if its masks with honest survivors are all within it.
    """
    dropouts, everyone = len(graph) - survivors, 2 ** len(graph)
    near = [sum(1 << other for other in graph[who]) for who in range(len(graph))]
    for bad in combinations(range(len(graph)), colluders):
        mask = sum(1 << who for who in bad)
        for alive in (a for a in range(everyone) if a.bit_count() >= survivors):
            honest = alive & ~mask
            group = honest & (honest - 1)
            while group:
                left_out = [
                    (near[who] & honest & ~group).bit_count() for who in graph if group >> who & 1
                ]
                lied_to = sum(number > 0 for number in left_out)
                if max(left_out) <= dropouts and alive.bit_count() - lied_to >= quorum:
                    return bad, bin(alive), bin(group)
                group = (group - 1) & honest
    return None


@pytest.mark.parametrize("clients", range(2, 9))
def test_among_m_clients_that_agree_no_second_group_is_read(clients):
    for count, survivors, colluders in CASES:
        if count == clients:
            plan = plan_graph(clients, min_survivors=survivors, colluders=colluders)
            assert (
                second_group(
                    harary_graph(range(clients), plan.degree), survivors, colluders, survivors
                )
                is None
            )


@pytest.mark.parametrize(("clients", "survivors", "colluders"), [c for c in CASES if c[0] <= 7])
def test_no_division_of_the_holders_gives_both_secrets(clients, survivors, colluders):
    """Honest holders give one secret or none, whatever each is told; colluders give both."""
    plan = plan_graph(clients, min_survivors=survivors, colluders=colluders)
    for gifts in product((0, 1, 2), repeat=plan.degree + 1 - colluders):
        seeds, keys = (gifts.count(kind) + colluders for kind in (1, 2))
        assert min(seeds, keys) < plan.threshold


@pytest.mark.parametrize(
    ("count", "degree"), [(2, 1), (9, 4), (10, 5), (12, 3), (7, 6), (30, 11), (31, 8)]
)
def test_the_graph_is_regular_and_symmetric(count, degree):
    order = [100 + 7 * who for who in range(count)]
    graph = harary_graph(order, degree)
    assert set(graph) == set(order)
    for who, near in graph.items():
        assert len(set(near)) == degree
        assert who not in near
        assert list(near) == sorted(near)
        assert all(who in graph[other] for other in near)


def test_the_order_is_public_and_changes_with_the_attempt():
    terms, later = make_terms(20, survivors=18), make_terms(20, survivors=18, attempt=1)
    assert terms.neighbours == make_terms(20, survivors=18).neighbours
    assert terms.neighbours != later.neighbours
    assert public_order([3, 1, 2], b"seed") == public_order([1, 2, 3], b"seed") == [3, 2, 1]


@pytest.mark.parametrize(
    ("clients", "survivors", "colluders", "text"),
    [
        (10, 5, 1, r"min_survivors > \(clients"),
        (10, 6, 2, r"min_survivors > \(clients"),
        (10, 11, 1, "min_survivors <= 10"),
        (10, 8, -1, "colluders=-1 >= 1"),
        (10, 8, 0, "colluders=0 >= 1: every client of a sum reads the sum and knows its own noise"),
        (4, 4, 4, r"4 \+ 1 <= min_survivors"),
        (1, 1, 1, "min_survivors"),
    ],
)
def test_what_no_graph_fits_is_refused(clients, survivors, colluders, text):
    with pytest.raises(ValueError, match=text):
        plan_graph(clients, min_survivors=survivors, colluders=colluders)


@pytest.mark.parametrize(
    ("clients", "survivors", "colluders"), [(6, 5, 1), (6, 5, 2), (8, 6, 1), (8, 7, 2), (8, 8, 3)]
)
def test_one_neighbour_less_is_too_few(clients, survivors, colluders):
    """The search above sees a graph that is too thin: k is tight."""
    degree = plan_graph(clients, min_survivors=survivors, colluders=colluders).degree - 1
    assert (
        second_group(harary_graph(range(clients), degree), survivors, colluders, survivors)
        is not None
    )


@pytest.mark.parametrize(
    ("clients", "survivors", "colluders"), [(5, 4, 2), (6, 5, 1), (7, 6, 2), (8, 7, 5)]
)
def test_one_tag_less_is_too_few(clients, survivors, colluders):
    """A client that is content with m - 1 tags."""
    degree = plan_graph(clients, min_survivors=survivors, colluders=colluders).degree
    assert (
        second_group(harary_graph(range(clients), degree), survivors, colluders, survivors - 1)
        is not None
    )


@pytest.mark.parametrize(("threshold", "colluders"), [(3, 0), (4, 1), (2, 0), (4, 2)])
def test_a_threshold_of_half_or_less_is_refused(threshold, colluders):
    with pytest.raises(ValueError, match="above half"):
        GraphPlan(degree=6, threshold=threshold, colluders=colluders)


def test_a_planted_threshold_of_half_gives_both_secrets():
    """The brute force above would see it: of 6 holders 3 give one secret and 3 the other."""
    assert any(min(gifts.count(1), gifts.count(2)) >= 3 for gifts in product((0, 1, 2), repeat=6))
