"""Received numbers against unknowns, counted by hand."""

from fedlsg.attacks.inversion.prior import Prior, count
from fedlsg.attacks.observation import Knowledge, ThreatModel
from tests.fedlsg.support.observed import digits, method, mlp, observe

PRIOR = Prior(shape=(1, 8, 8))


def test_by_hand():
    x, y = digits(6)
    seen = observe("rgp", mlp(), x, y)
    counted = count(seen, PRIOR, ThreatModel(), Knowledge(labels=y, examples=6))
    assert counted.received == len(seen.values) == 2 * 64 * 8 + 64 + 650 == 1738
    assert counted.twice == 8**2
    assert (counted.equations, counted.unknowns, counted.enough) == (1674, 6 * 64, True)


def test_masked_cores_are_not_sent_twice():
    x, y = digits(1)
    counted = count(
        observe(method("lsg", sparsity=0.5), mlp(), x, y), PRIOR, ThreatModel(), Knowledge(labels=y, examples=1)
    )
    assert (counted.received, counted.twice) == (2 * 32 * 8 + 64 + 650, 0)
