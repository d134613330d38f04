"""What a server with t colluders sees: uniform vectors, and the honest sum. Secrets repeat from
seeds.

Symbols: x_i inputs, y_i masked vectors; the residual r_i of an honest survivor is y_i without every
mask that server
and colluders can compute: the self-masks, and the pair masks with colluders and with those that
dropped out.
"""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedlsg.secure_sum import Terms, Total, reproducible_root
from fedlsg.secure_sum import messages as wire
from fedlsg.secure_sum.keys import AttemptSecrets, add_masks, clear, pair_seed, public_bytes, sign
from fedlsg.secure_sum.messages import unpack_bits
from tests.fedlsg.support.secure_rounds import make_clients, make_terms, run_attempt

LENGTH, ATTEMPTS, SMALL = 256, 60, 1e-4
"""Below SMALL a distribution counts as another one."""


def vector(message: bytes, terms: Terms) -> np.ndarray:
    return unpack_bits(message[wire.HEADER.size : -wire.CHECKSUM_BYTES], terms.length, terms.bits)


def masked_samples(value: int, seed: int) -> np.ndarray:
    """Masked vectors of all attempts, clients and positions: attempts x clients x values, 8
    bits.
    """
    samples = []
    for attempt in range(ATTEMPTS):
        terms = make_terms(4, survivors=4, colluders=1, length=LENGTH, bits=8, attempt=attempt)
        inputs = {who: np.full(LENGTH, value) for who in terms.clients}
        found = run_attempt(terms, inputs, seed=seed)
        samples.append([vector(message, terms) for message in found.masked.values()])
    return np.array(samples)


def uniform(sample: np.ndarray, cells: int = 256) -> float:
    """The p-value of Pearson's test that all cells are equally likely."""
    return float(stats.chisquare(np.bincount(sample.ravel(), minlength=cells)).pvalue)


def same(one: np.ndarray, two: np.ndarray) -> float:
    """The p-value of the test that two samples have one distribution."""
    counts = [np.bincount(sample.ravel(), minlength=256) for sample in (one, two)]
    return float(stats.chi2_contingency(np.array(counts))[1])


@pytest.fixture(scope="module")
def zeros() -> np.ndarray:
    return masked_samples(0, seed=1)


@pytest.fixture(scope="module")
def large() -> np.ndarray:
    return masked_samples(200, seed=2)


@pytest.mark.slow
def test_masked_vectors_are_uniform_whatever_the_inputs(zeros, large):
    assert uniform(zeros) > SMALL
    assert uniform(large) > SMALL
    assert same(zeros, large) > SMALL
    first = zeros[:, :, 0]  # one word of each vector: over attempts, not along a key stream
    assert stats.kstest(first.ravel() / 256, "uniform").pvalue > SMALL


def test_the_checks_see_masks_that_are_missing(zeros):
    """Negative controls: no mask, a mask of 7 bits, one mask for two clients."""
    assert uniform(np.zeros_like(zeros)) < SMALL
    assert uniform(zeros >> 1) < SMALL
    assert same(zeros >> 1, zeros) < SMALL
    assert uniform(16 * (zeros[:, 0] >> 4) + (zeros[:, 0] >> 4)) < SMALL


def residuals(
    terms: Terms, inputs: dict[int, np.ndarray], seed: int, gone: set[int], colluders: set[int]
) -> np.ndarray:
    """The residuals of the honest survivors, computed from what the coalition knows."""
    found = run_attempt(
        terms, inputs, seed=seed, drop=lambda stage, who: stage == "masked" and who in gone
    )
    assert isinstance(found.outcome, Total)
    secrets = {
        who: AttemptSecrets(reproducible_root(seed, who), terms.digest, who)
        for who in terms.clients
    }
    rest = []
    for who in sorted(found.outcome.survivors - colluders):
        words = vector(found.masked[who], terms).copy()
        known = [
            (
                pair_seed(
                    secrets[j].mask_key, j, public_bytes(secrets[who].mask_key), who, terms.digest
                ),
                -sign(who, j),
            )
            for j in terms.neighbours[who]
            if j in gone | colluders
        ]
        add_masks(words, [(secrets[who].self_seed, -1), *known])
        rest.append(clear(words, terms.bits))
    return np.array(rest)


def coalition_view(inputs: tuple[int, int, int], seed: int) -> np.ndarray:
    """Residuals of three honest survivors; a fourth client colluded, a fifth dropped out behind its
    shares.
    """
    views = []
    for attempt in range(ATTEMPTS):
        terms = make_terms(5, survivors=4, colluders=1, length=LENGTH, bits=8, attempt=attempt)
        *honest, colluder, gone = terms.clients
        values = {who: np.full(LENGTH, x) for who, x in zip(honest, inputs, strict=True)}
        values |= {who: np.full(LENGTH, 9) for who in (colluder, gone)}
        views.append(residuals(terms, values, seed, {gone}, {colluder}))
    return np.array(views)


@pytest.mark.slow
def test_a_coalition_learns_the_honest_sum_and_nothing_else():
    """Two inputs of equal honest sum: the sum of the residuals is that sum, any two of them are
    uniform.
    """
    one, two = coalition_view((7, 50, 100), seed=1), coalition_view((150, 0, 7), seed=2)
    for view in (one, two):
        assert set(view.astype(int).sum(axis=1).ravel() % 256) == {157}
        high = view >> 4
        for a, b in ((0, 1), (0, 2), (1, 2)):
            assert uniform(16 * high[:, a] + high[:, b]) > SMALL
    for at in range(3):
        assert same(one[:, at], two[:, at]) > SMALL


def test_one_colluder_more_than_the_honest_graph_stands_is_seen():
    """Negative control: if all neighbours of a client collude, its residual is its input."""
    terms = make_terms(4, survivors=4, colluders=1, length=LENGTH, bits=8)
    who = terms.clients[0]
    inputs = {client: np.full(LENGTH, client) for client in terms.clients}
    rest = residuals(terms, inputs, 0, set(), set(terms.neighbours[who]))
    assert who in {int(row[0]) for row in rest if len(set(row)) == 1}


def test_a_coalition_never_holds_both_secrets_of_an_honest_client():
    """Answers of all and everything that t colluders were sent: less than h shares of the secret
    that was not asked.
    """
    for seed in range(5):
        terms = make_terms(9, survivors=6, colluders=2, attempt=seed)
        gone, colluders = set(terms.clients[1:3]), set(terms.clients[5:7])
        clients = make_clients(terms, seed)
        held = {who: (terms.holders(who)) for who in colluders}
        found = run_attempt(
            terms,
            {who: np.zeros(8, int) for who in terms.clients},
            seed=seed,
            clients=clients,
            drop=lambda stage, who: stage == "masked" and who in gone,  # noqa: B023
        )
        seeds, keys = Counter[int](), Counter[int]()
        for who in found.answers:
            given = [
                other
                for other in terms.holders(who)
                if who not in colluders or other not in held[who]
            ]
            seeds.update(other for other in given if other not in gone)
            keys.update(other for other in given if other in gone)
        for who in colluders:
            seeds.update(held[who])
            keys.update(held[who])
        honest = set(terms.clients) - colluders
        assert all(keys[who] < terms.plan.threshold for who in honest - gone)
        assert all(seeds[who] < terms.plan.threshold for who in honest & gone)
        assert all(seeds[who] >= terms.plan.threshold for who in honest - gone)


def ideal_views(
    inputs: tuple[int, ...], edges: list[tuple[int, int]], modulus: int = 4
) -> Counter[tuple[int, ...]]:
    """All residuals, over all pair masks modulo 4 on the edges of the honest graph."""
    views = Counter[tuple[int, ...]]()
    for masks in product(range(modulus), repeat=len(edges)):
        rest = list(inputs)
        for (i, j), mask in zip(edges, masks, strict=True):
            rest[i] += sign(i, j) * mask
            rest[j] += sign(j, i) * mask
        views[tuple(value % modulus for value in rest)] += 1
    return views


@pytest.mark.parametrize(
    "edges", [[(0, 1), (1, 2)], [(0, 1), (1, 2), (0, 2)], [(0, 1), (1, 2), (2, 3), (0, 3)]]
)
def test_on_a_connected_graph_equal_sums_have_equal_views(edges):
    count = 1 + max(max(edge) for edge in edges)
    for inputs in product(range(4), repeat=count):
        moved = (sum(inputs) % 4, *[0] * (count - 1))
        assert ideal_views(inputs, edges) == ideal_views(moved, edges)
