"""Received numbers against unknowns, counted by hand."""

from dataclasses import replace

import pytest

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


def test_unknown_labels_and_examples_count():
    x, y = digits(4)
    seen = observe("rgp", mlp(), x, y)
    counted = count(seen, PRIOR, ThreatModel(labels="unknown"), Knowledge(examples=4))
    assert counted.unknowns == 4 * 64 + 4
    guessed = count(seen, PRIOR, ThreatModel(labels="unknown", examples="unknown"), Knowledge())
    assert guessed.examples == 4


def test_large_batches_have_too_many_unknowns():
    x, y = digits(40)
    assert not count(observe("rgp", mlp(), x, y), PRIOR, ThreatModel(), Knowledge(labels=y, examples=40)).enough


def test_a_threat_model_that_asks_for_what_is_not_there():
    x, y = digits(1)
    seen = observe("rgp", mlp(), x, y)
    for threat, known, why in (
        (ThreatModel(), Knowledge(examples=1), "grants labels"),
        (ThreatModel(labels="unknown"), Knowledge(), "grants the number"),
    ):
        with pytest.raises(ValueError, match=why):
            count(seen, PRIOR, threat, known)
    with pytest.raises(ValueError, match="sum of 2 clients"):
        count(replace(seen, clients=(0, 1)), PRIOR, ThreatModel(), Knowledge(labels=y, examples=1))
